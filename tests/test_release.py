"""The wheel works without the repository. `make release-test` installs its requirements, too, at full length."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import advbnn

pytest.importorskip("hatchling")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_reproduces_the_paper_in_an_environment_of_its_own(tmp_path: Path) -> None:
    def run(*command: object) -> str:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [str(part) for part in command], cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip, offline = [sys.executable, "-m", "pip", "-q"], ["--no-deps", "--no-index", "--disable-pip-version-check"]
    run(*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("advbnn-*.whl")
    assert advbnn.__version__ in wheel.name
    venv.create(tmp_path / "env", symlinks=os.name != "nt")
    python = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(*pip, "--python", python, "install", *offline, wheel)
    # its requirements from here; the line is no site folder, so that an editable installation in it does not count
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "requirements.pth").write_text("\n".join(path for path in sys.path if Path(path).name == site.name) + "\n")

    assert Path(run(python, "-c", "import advbnn; print(advbnn.__file__)").strip()).is_relative_to(tmp_path)
    options = [
        "--defenses",
        "adv,adv_bnn",
        "--jobs",
        "1",
        "--limit",
        "20",
        "--audit",
        "none",
        "--no-estimate",
        "--device",
        "cpu",
    ]
    settings = [part for each in ("schedule.epochs=1", "attack.steps=1") for part in ("--set", each)]
    shown = run(python.with_name("advbnn"), "reproduce", "all", "--data", "digits", *options, *settings)
    assert "failed" not in shown and "Adv-BNN" in shown
    out = tmp_path / "reproduced" / "digits-ours"
    assert (out / "report" / "report.html").exists() and "schedule.epochs=1" in (out / "results.md").read_text()
