"""`fusec serve` as a person runs it: it says where it is, answers there, and ends on Ctrl-C."""

import re
import signal
import subprocess
import sys

from fusec.cli import checks
from fusec.cli.checks import Level
from fusec.options import Options


def test_it_serves_until_interrupted(tmp_path):
    command = [sys.executable, "-m", "fusec", "serve", "--pool", "memory", "--port", "0"]
    command += ["--store", str(tmp_path / "store")]
    # As in a terminal: whoever runs the tests in the background has them ignore the interrupt.
    with subprocess.Popen(
        ["env", "--default-signal=INT", *command], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            seen = ""
            for line in process.stdout:
                seen += line
                if "Ctrl-C" in line:
                    break
            address = re.search(r"export FUSEC_REMOTE=(\S+)", seen)
            assert address is not None, seen
            options = Options.from_env({"FUSEC_REMOTE": address[1]})
            assert checks.remote(options).level is Level.OK
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
            assert checks.remote(options).level is Level.FAIL
        finally:
            process.kill()
    assert (tmp_path / "store").is_dir()
