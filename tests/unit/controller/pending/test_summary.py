from controller.pending import Explanation, Waiter, summarize, used_up
from controller.watching import SeenQuota

NAME, CLASS = "nvidia.com/gpu", "gpu.gpu.dradriver.dev"


def waiter(pod, reason="NoDeviceFree", message="all are taken"):
    return Waiter(pod=pod, explanation=Explanation(resource_name=NAME, reason=reason, message=message))


def test_nobody_waits():
    found = summarize([], "")
    assert (found.holds, found.reason, found.message) == (False, "NoneWaits", "")


def test_the_commonest_reason_first_and_the_first_pod_stands_for_all():
    found = summarize([waiter("b/y", "ClassMissing", "no class"), waiter("a/z"), waiter("a/x")], "")
    assert (found.holds, found.reason) == (True, "NoDeviceFree")
    assert found.message == (
        "2 pods wait (NoDeviceFree), such as a/x: all are taken; and 1 pod waits (ClassMissing), such as b/y: no class"
    )


def test_many_reasons_and_long_ones_are_cut():
    found = summarize([waiter(f"n/p{number}", f"R{number}", "x" * 3000) for number in range(5)], "")
    assert len(found.message) == 2048
    assert "2 pods wait for other reasons" in summarize([waiter("n/p", f"R{n}") for n in range(5)], "").message


def quota(*limits, name="q"):
    return SeenQuota(name=name, namespace="ns", limits=limits)


def test_quotas_that_are_used_up():
    keys = (
        f"requests.{NAME}",
        f"requests.deviceclass.resource.kubernetes.io/{CLASS}",
        f"{CLASS}.deviceclass.resource.k8s.io/devices",
    )
    for key in keys:
        said = used_up([quota((key, 4, 4))], NAME, CLASS)
        assert said.startswith(f"used up: ResourceQuota ns/q (4 of 4 {key}); there, further pods")
        assert used_up([quota((key, 3, 4)), quota((key, 0, 0))], NAME, CLASS) == ""
    assert used_up([quota(("requests.nvidia.com/other", 4, 4))], NAME, CLASS) == ""


def test_few_quotas_are_named():
    said = used_up([quota((f"requests.{NAME}", 1, 1), name=f"q{number}") for number in range(5)], NAME, CLASS)
    assert "ns/q2 (1 of 1 requests.nvidia.com/gpu) and 2 more; there" in said


def test_a_quota_is_told_where_nobody_waits_and_beside_those_who_do():
    alone = summarize([], "used up: q")
    assert (alone.holds, alone.reason, alone.message) == (False, "QuotaUsedUp", "used up: q")
    assert summarize([waiter("a/x")], "used up: q").message.endswith("all are taken; and used up: q")
