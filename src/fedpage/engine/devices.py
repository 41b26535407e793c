"""Describe clients' devices: latency, bandwidth and speed, from a profile or from measurements."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import os
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpage.core import validate
from fedpage.core.columns import SIMULATED, Cost
from fedpage.core.display import repr_settings
from fedpage.core.errors import InputError, did_you_mean, short_repr
from fedpage.core.files import check_file
from fedpage.core.random import check_seed, normal_per_client, uniform_per_client
from fedpage.core.spec import number, parse
from fedpage.core.types import Ints, Vector
from fedpage.runs.config import field_values

_COLUMNS = ("latency", "downlink", "uplink", "gradient")
_ROW, *_PURPOSES, _CALL_NOISE = 11, 12, 13, 14, 15, 16
"""Purposes of the draws, apart from those of faults and from each other."""
_DEVIATION = partial(validate.within, low=0.0, high=10.0)
"""Times are proportional to the exponential of a standard deviation, so it is bounded."""
_CHECKS: dict[str, validate.FieldCheck] = {
    "latency": validate.at_least_zero,
    "downlink": validate.positive,
    "uplink": validate.positive,
    "gradient": validate.at_least_zero,
    "spread": _DEVIATION,
    "noise": _DEVIATION,
    "overhead": validate.at_least_zero,
    "deadline": validate.positive,
    "client": partial(validate.whole, least=0),
}


class Profile(NamedTuple):
    """Medians of a population of devices, and how much devices differ; see `Devices`."""

    latency: float
    downlink: float
    uplink: float
    parameter: float
    """Seconds of a row's gradient, for each parameter of the model."""
    spread: float
    noise: float


PROFILES = {
    "datacenter": Profile(0.001, 1.25e9, 1.25e9, 1e-10, spread=0.1, noise=0.05),
    "cross-silo": Profile(0.05, 1.25e7, 1.25e7, 1e-9, spread=0.3, noise=0.1),
    "phones": Profile(0.1, 2.5e6, 6.25e5, 1e-8, spread=0.7, noise=0.3),
}
"""Assumptions, not measurements: round numbers of links of 10 Gbit/s, of 100 Mbit/s, and of 20
Mbit/s down and 5 Mbit/s up. Measure your own devices where the answer depends on them."""


class Device(NamedTuple):
    """A measured device."""

    latency: float
    downlink: float
    uplink: float
    gradient: float
    client: int | None = None
    """The client that has it; None if any client may."""


class Speeds(NamedTuple):
    """The devices of all clients, (N,) each."""

    latency: Vector
    downlink: Vector
    uplink: Vector
    gradient: Vector

    def seconds(self, clients: Ints, down: int, up: Ints, gradients: Ints) -> Vector:
        """Return the time of each client, (n,), for bytes down and up and gradients of rows."""
        return (
            self.latency[clients]
            + down / self.downlink[clients]
            + gradients * self.gradient[clients]
            + up / self.uplink[clients]
        )


@dataclass(frozen=True)
class Devices:
    """The devices of clients, which determine the simulated time of rounds.

    A called client takes latency + bytes down / downlink + row gradients x gradient + bytes up /
    uplink seconds, times exp(noise z), where z is standard normal, one per call. Each of the four
    numbers is the median times exp(spread z_i), with an independent z_i for each client. A round
    takes as long as its slowest client.

    Args:
        profile: "datacenter", "cross-silo" or "phones", which sets all medians not given here.
        seed: The seed of the devices. The noise depends on the run's seed instead.
        latency: Median seconds of a call besides transfer and computation.
        downlink: Median bytes a second from the server to a client.
        uplink: Median bytes a second from a client to the server.
        gradient: Median seconds of one row's gradient; by default the profile's, proportional to
            the number of parameters.
        spread: Standard deviation of the logarithms of the four numbers over clients.
        noise: Standard deviation of the logarithm of a call's time.
        overhead: Seconds that the server adds to each round.
        deadline: Seconds after which a round goes on without the clients that have not answered,
            unless the round needs every called client.
        measured: Measured devices in place of a profile; see `from_csv`.

    Raises:
        InputError: A value is out of range.

    >>> Devices("phones", deadline=10.0)
    Devices(deadline=10.0)
    """

    profile: str = "phones"
    seed: int = 0
    latency: float | None = None
    downlink: float | None = None
    uplink: float | None = None
    gradient: float | None = None
    spread: float | None = None
    noise: float | None = None
    overhead: float = 0.0
    deadline: float | None = None
    measured: tuple[Device, ...] = ()

    def __repr__(self) -> str:
        few = dataclasses.replace(self)
        object.__setattr__(few, "measured", ())
        return repr_settings(few)

    def __post_init__(self) -> None:
        if not isinstance(self.measured, tuple):
            raise InputError(f"devices: measured must be rows, not {short_repr(self.measured)}")
        if not self.measured and not validate.is_word(self.profile, PROFILES):
            hint = did_you_mean(self.profile, PROFILES)
            raise InputError(
                f"devices: {short_repr(self.profile)} is not a profile;{hint} profiles are "
                f"{', '.join(PROFILES)}; a file of measurements ends in .csv"
            )
        check_seed(self.seed)
        for name, check in _CHECKS.items():
            if getattr(self, name, None) is not None:
                check("devices", name, getattr(self, name))
        given = [name for name in (*_COLUMNS, "spread") if getattr(self, name) is not None]
        if self.measured and given:
            raise InputError(f"devices: {given[0]} cannot be set, because {self.profile} has it")

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str], **settings: Any) -> Devices:
        """Read measured devices from a CSV file with a row for each device.

        Its columns are latency (seconds), downlink and uplink (bytes a second), and gradient
        (seconds of one row's gradient). With a further column client, the file has a row for every
        client. Without it, each client has a device drawn from the rows by the seed.

        Args:
            path: The file.
            settings: Further arguments of `Devices`: seed, noise (0 by default), overhead,
                deadline.

        Raises:
            InputError: The file cannot be read, or a cell is wrong.
        """
        return cls(os.fspath(path), measured=_read_csv(os.fspath(path)), **settings)

    @classmethod
    def from_text(cls, text: str) -> Devices:
        """Return the devices of a profile or a file, with settings after a colon.

        Raises:
            InputError: The profile, the file or a setting cannot be used.

        >>> Devices.from_text("cross-silo:deadline=2,seed=1")
        Devices(profile='cross-silo', seed=1, deadline=2.0)
        """
        path, is_file, rest = text.partition(".csv")
        spec, where = parse("csv" + rest if is_file else text), f"devices {short_repr(text)}"
        if spec.values or not {"profile", "measured"}.isdisjoint(spec.settings):
            raise InputError(f"{where}: expected name=value after the colon, such as deadline=10")
        settings = field_values(cls, spec.settings, where, words=True)
        return cls.from_csv(path + is_file, **settings) if is_file else cls(spec.name, **settings)

    def _given(self) -> dict[str, object]:
        """Return the settings that differ from their defaults."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)[1:-1]}
        return {name: value for name, value in given.items() if value != getattr(Devices, name)}

    @property
    def text(self) -> str:
        """The text that `from_text` reads, such as "phones:deadline=10.0"."""
        words = ",".join(f"{name}={value!r}" for name, value in self._given().items())
        return f"{self.profile}:{words}" if words else self.profile

    def describe(self) -> dict[str, object]:
        """Return the settings that are not at their defaults, as plain values."""
        about: dict[str, object] = {"profile": self.profile}
        if self.measured:
            rows = repr([tuple(device) for device in self.measured])
            about = {"measured": "sha256:" + hashlib.sha256(rows.encode()).hexdigest()}
        else:  # a profile may change in a later version
            about |= PROFILES[self.profile]._asdict()
        return about | self._given()

    def draw(self, N: int, d: int) -> Speeds:
        """Return the devices of N clients, for a model of d parameters.

        Raises:
            InputError: The measured clients are not 0..N-1.
        """
        clients = np.arange(N, dtype=np.int64)
        if self.measured:
            return self._assign(clients)
        profile = PROFILES[self.profile]
        medians = profile._replace(parameter=profile.parameter * d)
        spread = profile.spread if self.spread is None else self.spread
        columns = []
        for purpose, name, usual in zip(_PURPOSES, _COLUMNS, medians, strict=False):
            given = getattr(self, name)
            z = normal_per_client(self.seed, purpose, clients=clients)
            columns.append((usual if given is None else given) * np.exp(spread * z))
        return Speeds(*columns)

    def _assign(self, clients: Ints) -> Speeds:
        """Return the measured devices of the clients that they belong to, or of drawn ones."""
        N, table = len(clients), np.array([device[:4] for device in self.measured])
        rows = (uniform_per_client(self.seed, _ROW, clients=clients) * len(table)).astype(np.int64)
        if self.measured[0].client is not None:
            owners = [device.client for device in self.measured]
            if len(owners) != N or set(owners) != set(range(N)):
                wrong = sorted({*range(N)} ^ {*owners})[0]  # type: ignore[type-var]
                what = "has no row for" if wrong < N else "names"  # type: ignore[operator]
                text = f"{what} client {wrong}, but clients are 0..{N - 1}"
                raise InputError(f"{self.profile}: {text}")
            rows = np.argsort(np.array(owners), kind="stable")
        return Speeds(*np.ascontiguousarray(table[rows].T))


class Clock:
    """Time the calls and the rounds of one run.

    A round takes the sum over its attempts of the time of the slowest client of each. It has the
    same bits for any chunks, because a maximum does not depend on the order.
    """

    def __init__(self, devices: Devices, N: int, d: int, seed: int) -> None:
        self.deadline = devices.deadline
        self._speeds, self._seed = devices.draw(N, d), seed
        self._noise, self._overhead = devices.noise, devices.overhead
        if self._noise is None:
            self._noise = 0.0 if devices.measured else PROFILES[devices.profile].noise
        self._attempts: dict[int, float] = {}

    def measure(
        self, clients: Ints, down: int, up: Ints, gradients: Ints, round: int, attempt: int
    ) -> Vector:
        """Return the seconds of each called client, (n,), with noise; see `Speeds.seconds`."""
        seconds = self._speeds.seconds(clients, down, up, gradients)
        if self._noise:
            z = normal_per_client(self._seed, _CALL_NOISE, round, attempt, clients=clients)
            seconds = seconds * np.exp(self._noise * z)
        return seconds

    def wait(
        self, attempt: int, seconds: Vector, *, is_required: bool, has_silent: bool
    ) -> NDArray[np.bool_] | None:
        """Wait for replies that take so many seconds, (n,), and return a mask of the late ones.

        The mask is None if no reply is late. If every called client is required, there is no
        deadline. A silent client, whose reply does not arrive, is waited for until the deadline.
        """
        last = float(seconds.max(initial=0.0))
        late = None
        if self.deadline is not None and not is_required:
            if last > self.deadline:
                late = seconds > self.deadline
            if late is not None or has_silent:
                last = self.deadline
        self._attempts[attempt] = max(last, self._attempts.get(attempt, 0.0))
        return late

    def pop_round(self) -> float:
        """Return the seconds of the round that has ended, and begin the next."""
        total = self._overhead + sum(self._attempts[key] for key in sorted(self._attempts))
        self._attempts.clear()
        return total


def check_time(cost: str | Cost, devices: Devices | None) -> None:
    """Raise an InputError for simulated seconds as a cost or a budget without devices."""
    if devices is None and Cost.parse(cost).counts(SIMULATED):
        raise InputError(
            f"{SIMULATED} needs devices: --devices phones, or devices=Devices('phones') in Python"
        )


def _read_csv(path: str) -> tuple[Device, ...]:
    """Read measured devices; errors name the file, the line and the column."""
    check_file(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, skipinitialspace=True, strict=True)
            names = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    known = (*_COLUMNS, "client")
    for name in (*names, *_COLUMNS):
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(f"{path}, line 1: unknown column {short_repr(name)};{hint}")
        if names.count(name) != 1:
            fault = "occurs twice" if name in names else "is missing"
            raise InputError(f"{path}, line 1: column {name} {fault}")
    if not rows:
        raise InputError(f"{path}: has no devices; give a line for each below the first")
    found: dict[int, Device] = {}
    for line, row in rows:
        where = f"{path}, line {line}"
        if len(row) != len(names):
            raise InputError(f"{where}: expected {len(names)} cells, as in the first line")
        values: dict[str, Any] = {}
        for name, text in zip(names, row, strict=True):
            value = number(text.strip())
            _CHECKS[name](where, name, text if value is None else value)
            values[name] = value if name == "client" else float(text)
        client = values.get("client")
        if client in found:
            raise InputError(f"{where}: client {client} occurs twice")
        found[line if client is None else client] = Device(**values)
    return tuple(found.values())
