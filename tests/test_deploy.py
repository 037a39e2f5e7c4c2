"""The files of deploy/ keep the rules that linters of their kind have, and agree with forge's settings."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from forge.config.model import Config

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
SHUTDOWN = Config().shutdown_timeout


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def loaded(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text())


def test_the_image_has_pinned_bases_no_root_and_a_command_without_a_shell() -> None:
    found = instructions()
    bases = [rest.split()[0] for word, rest in found if word == "FROM"]
    assert len(bases) == 2
    assert all(re.fullmatch(r"[\w/.-]+:\d+\.\d+\.\d+-[\w-]+", base) for base in bases)
    assert not [word for word, _ in found if word == "ADD"]
    users = [rest for word, rest in found if word == "USER"]
    assert users[-1].split(":")[0] not in ("root", "0")
    (command,) = [rest for word, rest in found if word in ("CMD", "ENTRYPOINT")]
    assert json.loads(command)[0] in commands()
    for word, rest in found:
        if word == "RUN" and "apt-get install" in rest:
            assert "--no-install-recommends" in rest
            assert rest.endswith("rm -rf /var/lib/apt/lists/*")


def commands() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])


def test_compose_migrates_before_a_pod_starts_and_lets_it_stop() -> None:
    services = loaded("compose.yaml")["services"]
    assert services["db"]["image"].startswith("postgres:18.")
    assert services["migrate"]["command"] == ["forge", "db", "migrate"]
    assert services["migrate"]["depends_on"] == {"db": {"condition": "service_healthy"}}
    assert "restart" not in services["migrate"]
    assert services["master"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert int(services["master"]["stop_grace_period"].removesuffix("s")) > SHUTDOWN


def test_kubernetes_runs_it_without_root_with_its_secret_and_time_to_stop() -> None:
    job, deployment = loaded("kubernetes/migrate.yaml"), loaded("kubernetes/deployment.yaml")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    for pod in (job["spec"]["template"]["spec"], deployment["spec"]["template"]["spec"]):
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["envFrom"] == [{"secretRef": {"name": "forge"}}]
        assert container["command"][0] in commands()
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > SHUTDOWN


def test_the_unit_is_the_one_in_the_docs_and_gives_time_to_stop() -> None:
    unit = (DEPLOY / "forge.service").read_text()
    (shown,) = re.findall(r"```ini\n# \S+forge.service\n(.*?)```", (ROOT / "docs/operating.md").read_text(), re.DOTALL)
    assert unit.replace("Wants=network-online.target\n", "") == shown
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert int(seconds) > SHUTDOWN


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = re.sub(r"/srv/app/\S*forge-master", "/bin/true", (DEPLOY / "forge.service").read_text())
    (tmp_path / "forge.service").write_text(unit.replace("User=app\n", ""))
    ran = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "forge.service"], capture_output=True, text=True, check=False
    )
    assert "forge.service:" not in ran.stderr, ran.stderr
