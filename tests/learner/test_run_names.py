"""Names of a rank's metrics in the metrics file of a run."""

from learner.metrics import run_names


def test_known_metrics_have_a_short_name_and_others_their_room() -> None:
    metrics = {"loss": 1.0, "kl_k3_mean": 2.0, "engine_gap_max": 3.0, "ratio_mean": 4.0}
    assert run_names(metrics) == {
        "loss": 1.0,
        "kl": 2.0,
        "gap/max": 3.0,
        "learner/ratio_mean": 4.0,
    }
