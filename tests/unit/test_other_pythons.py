"""What a shell or a module of the site has set for other Pythons decides nothing for ours."""

import os
import subprocess
from pathlib import Path

import pytest
from basics import ROOT, resources
from commands import in_a_process, python

from mrt_hpc.backends.slurm.parameters import sbatch_parameters
from mrt_hpc.backends.slurm.site import SlurmSite
from mrt_hpc.plan.jobs import Job, Role
from mrt_hpc.run.layout import RunLayout


@pytest.fixture
def shadow(tmp_path: Path) -> Path:
    """A folder of a module of the site, with a numpy that is for another Python."""
    (tmp_path / "numpy.py").write_text("raise ImportError('for another Python')\n")
    return tmp_path


def test_a_command_takes_no_package_of_pythonpath(shadow: Path, tmp_path: Path) -> None:
    named = os.pathsep.join([str(shadow), str(ROOT)])
    printed = in_a_process("doctor", "--site", "local", "--run", tmp_path / "run", exits=0, PYTHONPATH=named)
    assert "another Python" not in printed
    program = "from mrt_hpc.run.process import forget_other_pythons as f; f(); import os, numpy; print(os.environ)"
    told = python("-c", program, PYTHONPATH=named).stdout
    assert str(shadow) not in told and str(ROOT) in told, "children have the folder of this package only"


def test_a_task_takes_no_package_of_a_setup_line(shadow: Path, tmp_path: Path) -> None:
    job = Job(name="prepare", role=Role.PREPARE, tasks=1, resources=resources())
    site = SlurmSite(name="c", setup=(f"export PYTHONPATH={shadow}:{ROOT} PYTHONHOME=/opt/python",))

    def variables(site: SlurmSite) -> list[str]:
        setup = sbatch_parameters(job, site, RunLayout(tmp_path / "run"), waited_for=False)["setup"]
        script = "\n".join([*setup, 'echo "$PYTHONPATH|$PYTHONHOME|$PYTHONNOUSERSITE"'])
        done = subprocess.run(["bash", "-c", script], env=os.environ, capture_output=True, text=True, check=True)
        return done.stdout.strip().split("|")

    assert variables(site) == [f"{ROOT}:", "", ""]
    changes = {"environment": {"PYTHONPATH": "/mine"}, "container": {"image": "/i.sif"}}
    image = SlurmSite.model_validate({**site.model_dump(), **changes})
    assert variables(image) == ["/mine", "", "1"], "the profile's own words win, and an image takes nothing of ~/.local"
