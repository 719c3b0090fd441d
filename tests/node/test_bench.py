"""The part of the benchmark that boots a node of its own."""

from bench import podstatus


def test_an_error_is_measured_up_to_the_status_of_a_pod(cluster, capsys):
    """It boots one of its own; with the test's one the programs are there."""
    assert cluster.kubeconfig.exists()
    figure = podstatus.measure(rounds=1)
    assert len(figure.values) == 1
    assert figure.values[0] > 0
    assert "GPU" not in capsys.readouterr().out, "what is booted says nothing between the figures"
