"""What the commands share: what they say next, and what they refuse before anything heavy is imported."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

console = Console()


def say_next(command: str, why: str = "") -> None:
    """The command to type after this one."""
    print(f"next: {command}" + (f"   # {why}" if why else ""))


def require_files(*paths: Path | None) -> None:
    """Refuse what does not exist, before anything heavy is imported."""
    for path in paths:
        if path is not None and not path.exists():
            raise FileNotFoundError(f"there is no file or folder {path}")


def listed(text: str) -> list[str]:
    return [part for part in text.replace(",", " ").split() if part]


def numbers(option: str, text: str) -> list[float]:
    try:
        found = [float(part) for part in listed(text)]
    except ValueError:
        found = []
    if not found:
        raise ValueError(f"{option} expects numbers, e.g. `225 250`, got {text!r}")
    return found


def require_at_least(lowest: int, **options: int | None) -> None:
    for name, value in options.items():
        if value is not None and value < lowest:
            raise ValueError(f"--{name} must be at least {lowest}, got {value}")


def refuse_beside(why: str, **options: object) -> None:
    """Refuse options that would have no effect."""
    if given := [f"--{name}" for name, value in options.items() if value not in (None, [])]:
        raise ValueError(f"{why}: {', '.join(given)} cannot be given with it")
