import pytest

from dradriver.kube import errors

POLICY = (
    "resourceslices.resource.k8s.io \"x\" is forbidden: ValidatingAdmissionPolicy 'own-node' with binding "
    "'own-node' denied request: slice node node-b is not the node of the token node-a"
)


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind"),
    [
        (400, "BadRequest", 'unknown field "spec.x"', errors.InvalidError),
        (401, "Unauthorized", "no", errors.UnauthorizedError),
        (403, "Forbidden", "no", errors.ForbiddenError),
        (404, "NotFound", "no", errors.NotFoundError),
        (409, "Conflict", "no", errors.ConflictError),
        (409, "AlreadyExists", "no", errors.AlreadyExistsError),
        (410, "Expired", "no", errors.GoneError),
        (418, "", "no", errors.ApiError),
        (422, "Invalid", "spec.devices: Too many: 65", errors.InvalidError),
        (422, "Invalid", POLICY, errors.ForbiddenError),
        (422, "Invalid", 'admission webhook "w.example.com" denied the request: no', errors.ForbiddenError),
        (400, "", 'admission webhook "w.example.com" denied the request: no', errors.ForbiddenError),
        (429, "TooManyRequests", "no", errors.TooManyRequestsError),
        (500, "InternalError", "no", errors.ServerError),
        (504, "Timeout", "no", errors.ServerError),
    ],
)
def test_status_decides_the_class(status, reason, message, kind):
    error = errors.from_status(status, {"reason": reason, "message": message}, target="GET x")
    assert type(error) is kind
    assert (error.status, error.reason, error.message) == (status, reason, message)


def test_message_names_target_cause_and_next_step():
    error = errors.from_status(403, {"reason": "Forbidden", "message": "user x cannot"}, target="GET /a/b")
    assert str(error) == (
        "GET /a/b: 403 Forbidden: user x cannot (check the ClusterRole of this identity and the admission policies)"
    )


def test_header_wins_over_details_for_the_time_to_wait():
    document = {"details": {"retryAfterSeconds": 3}}
    assert errors.from_status(429, document, target="x").retry_after == 3
    assert errors.from_status(429, document, target="x", retry_after=7.0).retry_after == 7
    assert errors.from_status(429, {}, target="x").retry_after is None


def test_every_class_of_the_tree_is_a_kube_error_and_drawn_in_the_docstring():
    classes = [
        value for value in vars(errors).values() if isinstance(value, type) and value.__module__ == errors.__name__
    ]
    assert len(classes) > 10
    for kind in classes:
        assert issubclass(kind, errors.KubeError)
        assert kind.__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("details", ["text", [1], 7, {"retryAfterSeconds": "soon"}, {"retryAfterSeconds": {}}, None])
def test_details_that_make_no_sense_are_ignored(details):
    error = errors.from_status(503, {"details": details}, target="GET x")
    assert error.retry_after is None


@pytest.mark.parametrize(("value", "seconds"), [(5, 5.0), ("5", 5.0), (-1, 0.0), (1e9, 3600.0), ("1e400", 3600.0)])
def test_a_wait_is_read_from_the_details(value, seconds):
    error = errors.from_status(503, {"details": {"retryAfterSeconds": value}}, target="GET x")
    assert error.retry_after == seconds
