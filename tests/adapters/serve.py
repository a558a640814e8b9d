"""serve.py - the Python half of adapter.c: answers its requests with an engine of engines.py.

    python3 serve.py ENGINE SOCKET

adapter.c says the protocol. An engine that cannot do a call raises Unsupported, which becomes
FA_ERR_UNSUPPORTED; any other exception becomes FA_ERR_LAUNCH, with its text.
"""

import socket
import struct
import sys

import engines

REQUEST = struct.Struct("=10if")
UNSUPPORTED, NO_DEVICE, LAUNCH = 50, 52, 54
ELEMENT_BYTES = {engines.F16: 2, engines.F32: 4, engines.BF16: 2}


def receive(link, count):
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = link.recv_into(view)
        if not got:
            sys.exit(0)
        view = view[got:]
    return data


def answer(link, status, text="", *payload):
    said = text.encode(errors="replace")[:255]
    link.sendall(struct.pack("=ii", status, len(said)) + said)
    for part in payload:
        link.sendall(part)


def main():
    link = socket.socket(fileno=int(sys.argv[2]))
    try:
        engine = engines.make(sys.argv[1])
    except ImportError as missing:
        print(f"{sys.argv[1]}: {missing}", file=sys.stderr)
        sys.exit(1)
    link.sendall(engine.dialect.encode() + b"\n")
    while True:
        call = engines.Call(*REQUEST.unpack(receive(link, REQUEST.size)))
        size = ELEMENT_BYTES[call.dtype] * call.head_dim * call.batch
        q = receive(link, size * call.q_len * call.heads_q)
        k = receive(link, size * call.kv_len * call.heads_kv)
        v = receive(link, size * call.kv_len * call.heads_kv)
        try:
            o, lse = engine.forward(call, q, k, v)
        except engines.Unsupported as why:
            answer(link, UNSUPPORTED, str(why))
        except Exception as why:  # whatever a peer throws is its answer, and the next call comes
            answer(link, LAUNCH, f"{type(why).__name__}: {why}".replace("\n", " "))
        else:
            answer(link, 0, "", o, lse)


main()
