"""The program of the children in this folder's tests."""

import os
import subprocess
import time

from fusec.child.program import serve


def answer(request):
    what, value = request
    match what:
        case "echo":
            return value
        case "print":
            os.write(1, value.encode())
            return "printed"
        case "environment":
            return {**os.environ, "cwd": os.getcwd()}
        case "pid":
            return os.getpid()
        case "descendant":
            return subprocess.Popen(["sleep", "600"]).pid
        case "hang":
            while True:
                time.sleep(1)
        case "abort":
            os.write(2, value.encode())
            os.abort()
        case "allocate":
            return len(bytearray(value))


if __name__ == "__main__":
    serve(answer)
