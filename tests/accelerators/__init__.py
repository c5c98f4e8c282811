"""What the compilers of accelerators make of the library's programs, and what of it must stay so.

`make accelerators` compiles every row of expected.toml, for devices that need not be there, and checks what is expected
of it: it compiles, and fits into the device's memory; its messages and hand-written kernels are exactly these;
temporary memory and memory traffic have not grown.
"""
