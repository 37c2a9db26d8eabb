"""Which strategies can work on sketches in the place of models, and why the others cannot."""

from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Strategy

from pfed1bs.core.errors import UserError

MEANS = (FedAvg.aggregate_train, FedMedian.aggregate_train, FedTrimmedAvg.aggregate_train)
MOMENTS = "it keeps moments of all n weights, and what it makes of them would be sketched a second time"
NOISE = "it clips and adds noise to n weights, and the sum would be sketched a second time"
REASONS = {  # by the name of a class
    **dict.fromkeys(("FedOpt", "FedAvgM"), MOMENTS),
    **dict.fromkeys(("DifferentialPrivacyFixedClippingBase", "DifferentialPrivacyAdaptiveBase"), NOISE),
    "QFedAvg": "it weighs clients by their losses and the lengths of whole updates",
    "MultiKrum": "it chooses among whole models",
    "Bulyan": "it chooses among whole models",
}
OWN = "its aggregate_train is its own, and would be handed sketches of m numbers instead of models"
INSIDE = (
    "put FedAvg or FedProx inside; your own work on whole models belongs into a subclass of OneBitFedAvg, whose "
    "aggregate_train returns them"
)


def composable(inner: Strategy) -> Strategy:
    """The strategy, if it can average sketches as it would average models; otherwise an error with the reason."""
    kind = type(inner)
    if not isinstance(inner, Strategy):
        raise UserError(f"OneBitFedAvg goes around a strategy, got {kind.__name__}", "OneBitFedAvg(FedAvg(...))")
    if kind.aggregate_train in MEANS:
        return inner
    reason = next((REASONS[base.__name__] for base in kind.__mro__ if base.__name__ in REASONS), OWN)
    raise UserError(f"{kind.__name__} cannot be wrapped: {reason}", INSIDE)
