"""test_conform.py - the conformance kit gives the right verdict on what is known.

    python3 test_conform.py FA_CONFORM FA_CASE LIBRARY MUTANT ADAPTER

This build conforms; a mutant fails, and the line that it prints repeats the failure alone; numpy
through the adapter conforms but for what it has no word for; an engine that speaks another dialect
is accepted only where that is declared, and the differences are counted; a library that crashes and
an adapter's process that dies are failures of their items and not the end of the run. torch on the
CPU is judged where it is installed.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

CONFORM, CASE, LIBRARY, MUTANT, ADAPTER = sys.argv[1:6]
CONFORMS, FAILS, DIALECT = 0, 1, 3
checks = 0


def check(fact, *what):
    global checks
    checks += 1
    if not fact:
        sys.exit("FALSE: " + " ".join(str(w) for w in what))


def judge(library, *words, **environment):
    """(exit code, JSON record, TAP, JUnit root, text) of a run."""
    with tempfile.TemporaryDirectory() as folder:
        stem = pathlib.Path(folder) / "judged"
        run = subprocess.run([CONFORM, library, f"out={stem}", *words], text=True, check=False,
                             capture_output=True, env={**os.environ, **environment})
        if run.returncode == 2:
            return 2, None, None, None, run.stderr
        record = json.loads(stem.with_suffix(".json").read_text())
        tap = stem.with_suffix(".tap").read_text().splitlines()
        junit = xml.parse(stem.with_suffix(".xml")).getroot()
    states = [result["state"] for result in record["results"]]
    wrong = states.count("wrong") + states.count("not run")
    check(tap[1] == f"1..{len(states)}", "TAP has its plan")
    check(sum(line.startswith("not ok ") for line in tap) == wrong, "TAP counts the failures")
    check(len(junit.findall(".//failure")) == wrong, "JUnit counts the failures")
    check(len(junit.findall(".//testcase")) == len(states), "JUnit has every item")
    print(f"{run.stdout.splitlines()[-1]}: {len(states)} items, {wrong} wrong, exit code "
          f"{run.returncode}")
    return run.returncode, record, tap, junit, run.stdout


def adapter(engine, *words):
    return judge(ADAPTER, *words, FA_ADAPTER=engine, FA_ADAPTER_PYTHON=sys.executable)


def installed(module):
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True,
                          check=False).returncode == 0


code, record, *_ = judge(LIBRARY, "fuzz=100")
check(code == CONFORMS and record["verdict"] == "CONFORMS", "this build conforms")
check({r["section"] for r in record["results"]} == {"cases", "identities", "fuzz", "errors"},
      "every section was run")

code, record, tap, _, text = judge(MUTANT, "only=identities", FA_MUTANT="top_left_mask")
check(code == FAILS, "a top-left mask fails")
check("tolerance" in text and "head" in text and "should be" in text, "where, and by how much")
code, record, *_ = judge(MUTANT, "only=A1 ", FA_MUTANT="lse_plus_inf")
check(code == FAILS, "lse of +inf fails")
command = next(r["repeat"] for r in record["results"] if r["state"] == "wrong")
folder = str(pathlib.Path(CASE).parent)
again = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, env={
    **os.environ, "FA_MUTANT": "lse_plus_inf", "PATH": folder + ":" + os.environ["PATH"]})
check(again.returncode == 1 and "WRONG" in again.stdout, "the printed line repeats it:", command)
code, *_ = judge(MUTANT, "only=A1 ", "dialect=p", FA_MUTANT="lse_plus_inf")
check(code == DIALECT, "unless that is declared")
code, record, *_ = judge(MUTANT, "only=errors", FA_MUTANT="errors_hidden")
check(code == FAILS, "hidden errors fail")
code, record, *_ = judge(MUTANT, "only=nothing", FA_MUTANT="int32_offsets")
check(code == FAILS, "no item at all is no success")
code, record, *_ = judge(MUTANT, "only=B19", FA_MUTANT="int32_offsets")
check(code == FAILS and any("signal" in r["why"] for r in record["results"]),
      "a crash is a failure, and the run goes on")

check(adapter("no such engine")[0] == 2, "an absent peer is not judged")
if installed("numpy"):
    code, record, *_ = adapter("numpy", "only=identities")
    check(code == DIALECT, "numpy conforms but for what it refuses")
    check([d["letter"] for d in record["differences"]] == ["u"], "and that alone is reported")
    refused = record["differences"][0]["items"]
    code, record, *_ = adapter("numpy_dies", "only=identities")
    ended = [r for r in record["results"] if r["state"] == "wrong"]
    check(code == FAILS and all("process ended" in r["why"] for r in ended) and ended,
          "a process that dies is a failure of the call", [r["why"] for r in ended])
    check(record["differences"][0]["items"] <= refused, "and no refusal of the others")
    code, record, *_ = adapter("numpy_dialect", "only=identities")
    check(code == DIALECT, "top-left with lse in base 2 is a declared dialect")
    shown = {d["letter"]: d["items"] for d in record["differences"]}
    check(shown["t"] > 10 and shown["b"] > 10, "whose differences are counted", shown)
    code, *_ = adapter("numpy_dialect", "only=identities", "dialect=ub")
    check(code == FAILS, "top-left is a failure where it is not declared")
if installed("torch"):
    code, record, *_ = adapter("torch", "fuzz=100")
    shown = {d["letter"]: d["items"] for d in record["differences"]}
    check(code == DIALECT and shown["t"] > 10, "torch's is_causal is top-left", shown)
print(f"conform: {checks} checks, all true")
