"""The rules for includes between folders, and for the files that may include third-party headers.

usage: includes.py ROOT
Prints each include that breaks a rule; exit code 1 when there is one.
"""
import re
import sys

from report import main

MAY_INCLUDE = {
    "core": {"core"},
    "kernels": {"kernels", "core"},
    "planner": {"planner", "core"},
    "snapshot": {"snapshot", "core"},
    "lua": {"lua", "core", "kernels", "planner", "snapshot"},
    "tests": {"tests", "core", "kernels", "planner", "snapshot", "lua"},
}
# Third-party headers and the files that may include them: few, so that a library can be replaced.
MAY_SEE = {
    "nlohmann/": {"core/io/json.h", "lua/precompiled.h"},
    "sentencepiece": {"core/data/sentencepiece.cpp"},
    "CLI/": {"lua/cli.cpp"},
    "openssl/": {"core/net/proof.cpp", "core/base/base64.cpp"},
    "curl/": {"core/cluster/http.cpp", "snapshot/store/web.cpp"},
    "histedit.h": {"lua/prompt.cpp"},
    "lua.hpp": {"lua/bind.h"},
    "omp.h": {"core/base/parallel.cpp"},
    "capnp/": {"snapshot/exchange_protocol.cpp", "snapshot/manifest.cpp"},
    "kj/": {"snapshot/capnp_text.h", "snapshot/exchange_protocol.cpp", "snapshot/manifest.cpp"},
    "glpk.h": {"planner/milp.cpp"},
    "cublasLt.h": {"kernels/cuda/gemm.cpp"},
}


def problems_of(root):
    for folder, allowed in MAY_INCLUDE.items():
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".cu"):
                continue
            name = path.relative_to(root).as_posix()
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
                if not found:
                    continue
                quoted, header = found.group(1) == '"', found.group(2)
                where = f"{name}:{number}: includes {header}"
                if quoted and header.split("/")[0] in MAY_INCLUDE and header.split("/")[0] not in allowed:
                    yield f"{where}; {folder} may include {', '.join(sorted(allowed))}"
                generated = header.removesuffix(".h") if header.endswith(".capnp.h") else header
                if quoted and not (root / generated).is_file():
                    yield f"{where}, which does not start at the root of the repository"
                for prefix, files in MAY_SEE.items():
                    if header.startswith(prefix) and name not in files and folder != "tests":
                        yield f"{where}; only {', '.join(sorted(files))} may"


if __name__ == "__main__":
    sys.exit(main(problems_of))
