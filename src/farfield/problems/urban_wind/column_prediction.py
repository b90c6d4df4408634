"""The wind by the column network: buildings in, fields at any points out."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray

from farfield.attention import Group
from farfield.files import check_memory
from farfield.models.grid_part import agree_on_model
from farfield.problems.urban_wind.buildings import DOMAIN_HEIGHT, UrbanDomain
from farfield.problems.urban_wind.city import City, CorrectionScale, base_fields, told_channels
from farfield.problems.urban_wind.column_config import ColumnRun
from farfield.problems.urban_wind.column_part import ColumnPart, owners
from farfield.problems.urban_wind.columns import ColumnNetwork
from farfield.problems.urban_wind.files import UrbanCase
from farfield.problems.urban_wind.lattice import SPACING, levels_up_to
from farfield.problems.urban_wind.prediction import Advance, WindPredictor
from farfield.problems.urban_wind.sampling import UrbanNormalisation
from farfield.problems.urban_wind.site import Site
from farfield.runs.run import Run
from farfield.runs.weights import Device, chosen_device

# How a process grows with the cells that the network is told of, and with those of its physics, for 600 m of city.
NETWORK_BYTES, PHYSICS_BYTES = 700, 200
_CHUNK = 16_384  # points at a time: what they need stays in the processor's cache


class ColumnPredictor(WindPredictor):
    """The wind by the column network, which knows neutral air only."""

    model: ColumnNetwork

    def __init__(
        self,
        model: ColumnNetwork,
        normalisation: UrbanNormalisation,
        scale: CorrectionScale,
        encoding: str = "",
    ):
        super().__init__(normalisation, encoding, "urban-columns", next(model.parameters()).device)
        self.model = model.eval().requires_grad_(False)
        # Where bfloat16 is fast, all but positions and the linear path of the points is computed in it: features differ
        # by less than a hundredth of their spread from those in float32, which no error shows.
        self._fast = self.model
        if _fast_bfloat16(self.device):
            self._fast = copy.deepcopy(self.model).bfloat16()
            self._fast.direct.float()
        self.scale = scale
        self._last: tuple[Site, City] | None = None

    @classmethod
    def load(cls, run: Run, device: Device = None) -> ColumnPredictor:
        """The best weights of a run; on CUDA where there is one, unless a device is given."""
        config = ColumnRun.parse(run.settings(), str(run.config_path))
        data = run.dataset()
        model = config.build(channels=told_channels(data))
        run.load_weights(model)
        normalisation = UrbanNormalisation.from_dict(data["normalisation"])
        scale = CorrectionScale.from_dict(data["corrections"])
        predictor = cls(model.to(chosen_device(device)), normalisation, scale, config.encoding.name)
        predictor.described_by(run)
        predictor.oblique = data.get("turned", False)
        return predictor

    def from_case(
        self, case: UrbanCase, points: NDArray, rng: np.random.Generator, advance: Advance = lambda share: None
    ) -> NDArray[np.float32]:
        """All channels (N, F) at points (N, 3), in wind axes. Nothing is drawn: ``rng`` is not used."""
        _check_neutral(case.inverse_length)
        return self.from_city(City.around(case), points, advance)

    def from_site(
        self,
        site: Site,
        points: NDArray,
        rng: np.random.Generator,
        advance: Advance = lambda share: None,
        group: Group | None = None,
    ) -> NDArray[np.float32]:
        """The same around a user's buildings, whose lattice is all that is needed of them."""
        _check_neutral(site.inverse_length)
        return self.from_city(self._city(site), points, advance, group)

    def _city(self, site: Site) -> City:
        """The physics of a site; the last one's are kept, for members of a group that take turns."""
        if self._last is None or self._last[0] is not site:
            self._last = None
            check_lattice(site.domain)
            city = City.in_the_open(site.lattice, site.obstacles, site.domain, site.roughness)
            self._last = site, city
        return self._last[1]

    def parts(self, site: Site, points: NDArray, members: int) -> list[NDArray[np.int64]]:
        """Which of the points (N, 3), in the user's coordinates, each of so many members asks for: see :meth:`at`."""
        check_lattice(site.domain)
        columns = site.lattice.columns_of(site.to_wind(np.asarray(points, dtype=np.float64)))
        return owners(columns, site.lattice.shape[1:], self.model.patch, members)

    @torch.inference_mode()
    def from_city(
        self, city: City, points: NDArray, advance: Advance = lambda share: None, group: Group | None = None
    ) -> NDArray[np.float32]:
        """The same from a city whose physics are known; with a group, at this member's points (:meth:`parts`)."""
        device = self.device
        told = city.cells()[..., : self.model.channels].contiguous()  # all, but for runs of an earlier version
        inputs = (told, city.air())
        part = None
        if group is not None:
            agree_on_model(group, self.model)
            part = ColumnPart(group, city.lattice.shape[1:], self.model.patch)
            inputs = inputs[0][part.own], inputs[1][part.own]
        cells, air, profile = (x[None].to(device) for x in (*inputs, city.profile()))
        dtype = self._fast.in_air.dtype
        volume = self._fast.volume(cells.to(dtype), air.to(dtype), profile.to(dtype), part=part)[0]
        seen = cells[0] if part is None else told[part.seen].contiguous().to(device)
        out = np.empty((len(points), len(self.normalisation.channels)), dtype=np.float32)
        for start in range(0, len(points), _CHUNK):
            some = slice(start, start + _CHUNK)
            query = city.query(points[some])
            if part is not None:
                levels, _, along = city.lattice.shape
                query = query._replace(cells=part.cells(query.cells, along, levels))
            raw, local = self._fast.query(volume, seen, *(x.to(device) for x in query[:3]))
            fields = base_fields(local.cpu(), query) + self.scale.decode(raw.cpu())
            fields[:, 4:] = fields[:, 4:].contiguous().exp()  # k and epsilon; in strides it would be slow
            out[some] = fields.numpy()
            advance(len(fields) / len(points))
        return out


def check_lattice(domain: UrbanDomain) -> None:
    """Refuse a city whose lattice does not fit into memory, before anything is computed."""
    needed = 0.0
    for box, size in ((domain, NETWORK_BYTES), (domain.in_the_open(), PHYSICS_BYTES)):
        levels = levels_up_to(DOMAIN_HEIGHT if box is domain else box.height)
        needed += box.ground_area / SPACING**2 * (len(levels) - 1) * size
    along, across, _ = (domain.bounds @ [-1, 1]).tolist()
    check_memory(int(needed), f"the wind over {along:,.0f} x {across:,.0f} m")


def _check_neutral(inverse_length: float) -> None:
    if inverse_length != 0:
        raise ValueError(f"the column network knows neutral air only (1/L = 0), got 1/L = {inverse_length}")


def _fast_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies in bfloat16 faster than in float32."""
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return device.type == "cuda" and torch.cuda.is_bf16_supported()
