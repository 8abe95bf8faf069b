"""Ceph's object gateway on loopback: a second server that speaks S3, and decides less.

From Debian's packages `radosgw`, `ceph-mon` and `ceph-osd`: one monitor, one OSD that keeps all in
memory, one gateway. Takes about fifteen seconds and 330 MB.
"""

import secrets
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cache.testing import S3Server, make_bucket

PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool")
START_S = 180.0


def missing_programs() -> list[str]:
    """What is not installed of that which a server needs."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@contextmanager
def radosgw_server() -> Iterator[S3Server]:
    """Run one until the block ends, with a bucket named fusec."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fusec-ceph-")))
        cluster = _Cluster(folder, stack)
        gateway = cluster.start()
        access, secret = "fusec", secrets.token_hex(16)
        cluster.user(access, secret)
        server = S3Server(f"http://127.0.0.1:{cluster.gateway_port}", "fusec", access, secret)
        make_bucket(server, gateway, cluster.log("radosgw"), START_S)
        yield server


class _Cluster:
    """The processes of one cluster and their settings, all in one folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.monitor_port, self.gateway_port = _free_port(), _free_port()
        self._stack = stack
        self._conf = folder / "ceph.conf"
        self._fsid = str(uuid.uuid4())
        self._conf.write_text(
            f"""\
[global]
fsid = {self._fsid}
mon_initial_members = a
mon_host = 127.0.0.1:{self.monitor_port}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = {folder}/keyring
run_dir = {folder}
admin_socket = {folder}/$name.asok
log_file = {folder}/$name.log
pid_file =
mon_data = {folder}/mon
osd_data = {folder}/osd
osd_objectstore = memstore
memstore_device_bytes = 4294967296
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
rgw_frontends = beast endpoint=127.0.0.1:{self.gateway_port}
"""
        )

    def start(self) -> subprocess.Popen[bytes]:
        """Monitor, OSD, gateway; the last one's process."""
        for name in ("mon", "osd"):
            (self.folder / name).mkdir()
        keyring = str(self.folder / "keyring")
        every = ["--cap", "mon", "allow *"]
        self._run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", *every)
        every += ["--cap", "osd", "allow *", "--cap", "mgr", "allow *"]
        self._run("ceph-authtool", keyring, "--gen-key", "-n", "client.admin", *every)
        monmap = str(self.folder / "monmap")
        address = f"127.0.0.1:{self.monitor_port}"
        self._run("monmaptool", "--create", "--add", "a", address, "--fsid", self._fsid, monmap)
        made = ["--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring]
        self._run("ceph-mon", *made)
        self._keep("ceph-mon", "-i", "a")
        self._run("ceph", "osd", "create")
        for name, capabilities in (
            ("osd.0", ("mon", "allow profile osd", "osd", "allow *")),
            ("client.rgw", ("mon", "allow rw", "osd", "allow rwx")),
        ):
            text = self._run("ceph", "auth", "get-or-create", name, *capabilities)
            with open(keyring, "a") as file:
                file.write(text)
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", str(uuid.uuid4()))
        self._keep("ceph-osd", "-i", "0")
        return self._keep("radosgw", "-n", "client.rgw")

    def user(self, access: str, secret: str) -> None:
        """Somebody who may keep buckets."""
        keys = ["--access-key", access, "--secret-key", secret]
        self._run(
            "radosgw-admin", "user", "create", "--uid", "fusec", "--display-name", "fusec", *keys
        )

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [program, *self._settings(program), *arguments],
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.stderr[-2000:]}"
        return done.stdout

    def log(self, program: str) -> Path:
        """What a process has to say."""
        return self.folder / f"{program}.out"

    def _keep(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context(self.log(program).open("wb"))
        child = subprocess.Popen(
            [program, *self._settings(program), *arguments, "-f"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

        def stop() -> None:
            child.kill()
            child.wait()

        self._stack.callback(stop)
        return child

    def _settings(self, program: str) -> list[str]:
        plain = program in ("ceph-authtool", "monmaptool")
        return [] if plain else ["-c", str(self._conf)]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
