"""How figures are written on the page."""

from .row import Unit

_SCALES: dict[Unit, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")),
    "tokens": ((1.0, "tokens"),),
}


def figure(value: float, unit: Unit) -> str:
    """Write a figure in a unit of its own size, with three digits."""
    scales = _SCALES[unit]
    scale, name = next((pair for pair in scales if value >= pair[0]), scales[-1])
    return f"{digits(value / scale)} {name}"


def times(ratio: float) -> str:
    """Write a ratio, such as `2.4x`."""
    return f"{digits(ratio)}x"


def digits(value: float) -> str:
    """Write a number with three significant digits, or as a whole number from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{float(f'{value:.3g}'):g}"
