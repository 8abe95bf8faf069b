"""`fusec keys`: the key that signs artifacts, the keys that clients trust, and what is revoked."""

import argparse
from pathlib import Path

from cache import revocation
from cache.revocation import Revocations
from cache.signing import PublicKey, SigningKey, public_path, read_trusted
from fusec.errors import OptionsError
from fusec.options import Options
from fusec.remote.resolve import open_client

_HELP = """\
The farm signs what it publishes with a key that only it holds; clients use what one of their
trusted keys has signed. A key is changed with overlap: make the new one, add its .pub to the
clients' file, give it to the farm with the old .pub among its trusted keys, and take the old one
out of all files when nothing that it signed is wanted any more.
"""
_EXAMPLES = """\
examples:
  fusec keys generate farm.key            a pair: farm.key for the farm, farm.key.pub for clients
  fusec keys show trusted.keys            the signers of a file of public keys
  fusec keys revoke --signer farm.key.pub everything that this key has signed
  fusec keys revoke --key graph/3f9a…     one artifact
  fusec keys revoke --digest 77ab…        every artifact with this kernel or blob
  fusec keys revoke --compiler fusec-0.1.0
  fusec keys revoked                      what is revoked now

revoke and restore need FUSEC_REMOTE and a token with the role admin. What is revoked is a miss for
every client within a minute; what a process has loaded already goes on running in it.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "keys",
        help="make signing keys, revoke what they signed",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    generate = actions.add_parser("generate", help="make a pair of keys")
    generate.add_argument("file", type=Path, help="where the signing key goes; .pub beside it")
    generate.add_argument("--name", default="", help="a name for people, in the public key")
    generate.set_defaults(run=_generate)
    show = actions.add_parser("show", help="the signers of a file of public keys")
    show.add_argument("file", type=Path)
    show.set_defaults(run=_show)
    for name, text in (("revoke", "stop artifacts from being used"), ("restore", "undo revoke")):
        change = actions.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}: in all clients of FUSEC_REMOTE within a "
            "minute. Each may be given many times. Takes a token with the role admin.",
        )
        change.add_argument("--key", action="append", default=[], help="an artifact: graph/<hex>")
        change.add_argument(
            "--signer", action="append", default=[], help="64 hex characters, or a file of keys"
        )
        change.add_argument("--digest", action="append", default=[], help="a kernel's or blob's")
        change.add_argument(
            "--compiler", action="append", default=[], help="a name as in an artifact's seal"
        )
        change.set_defaults(run=_revoke if name == "revoke" else _restore)
    revoked = actions.add_parser("revoked", help="what is revoked now")
    revoked.set_defaults(run=_revoked)


def _generate(arguments: argparse.Namespace) -> int:
    key = SigningKey.generate(arguments.name)
    key.write(arguments.file)
    print(f"signing key, for the farm (FUSEC_FARM_SIGNING_KEY):    {arguments.file}")
    print(f"public key, for clients (FUSEC_TRUSTED_KEYS):          {public_path(arguments.file)}")
    print(f"signer:                                                {key.public.signer}")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    for key in read_trusted(arguments.file):
        print(f"{key.signer}  {key.name or '(no name)'}")
    return 0


def _revoke(arguments: argparse.Namespace) -> int:
    return _print(_change(_named(arguments), Revocations()))


def _restore(arguments: argparse.Namespace) -> int:
    return _print(_change(Revocations(), _named(arguments)))


def _revoked(arguments: argparse.Namespace) -> int:
    return _print(_change(Revocations(), Revocations()))


def _named(arguments: argparse.Namespace) -> Revocations:
    signers = {
        signer
        for text in arguments.signer
        for signer in ([text] if not Path(text).is_file() else _signers(Path(text)))
    }
    named = Revocations(
        frozenset(arguments.key),
        frozenset(signers),
        frozenset(arguments.digest),
        frozenset(arguments.compiler),
    )
    if not named:
        raise OptionsError("nothing is named", hint="fusec keys revoke --help")
    return named


def _signers(path: Path) -> list[str]:
    keys: tuple[PublicKey, ...] = read_trusted(path)
    return [key.signer for key in keys]


def _change(more: Revocations, less: Revocations) -> Revocations:
    options = Options.from_env()
    if not options.remote:
        raise OptionsError("FUSEC_REMOTE is not set", hint="set it to the service's address")
    with open_client(options, options.remote) as client:
        if not more and not less:
            return revocation.read(client)
        return revocation.change(client, add=[more], remove=[less])


def _print(revoked: Revocations) -> int:
    for sort in ("keys", "signers", "digests", "compilers"):
        for name in sorted(getattr(revoked, sort)):
            print(f"{sort.removesuffix('s'):9} {name}")
    if not revoked:
        print("nothing is revoked")
    return 0
