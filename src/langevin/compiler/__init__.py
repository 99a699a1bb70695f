"""Turn a function of tensors into machine code: record, write C, compile, cache, run.

Each stage is a file that uses only the stages before it:

1. `record`: run the function once and record torch's operations -> `Tape`. Two recordings at
   different inputs must be equal, otherwise the function cannot be recorded. `decompositions`
   replaces operations such as softmax or layer norm by simpler ones.
2. `graph`: replace tensors by strided accesses to buffers, views by offsets and strides, and
   operations on constants by their results; drop unused operations -> `Graph` of `Step`s.
3. `lower`: translate each step into pointwise loops (`pointwise` has their C expressions), copies,
   reductions or C code (indexing, linear algebra).
4. `schedule`: fuse steps of equal iteration space into loop nests -> `Group`s.
5. `source`: write loop nests, functions and a shared workspace as text -> `Source`. Numbers and
   data are arguments, so equal text is an equal program and the key of the cache.
6. `build`: find a C compiler, compile, load; `cache` stores the library privately, with a checksum.
7. `program`: call the library with its own workspace -> `Program`; a `Loop` takes all steps of a
   block in C (`loop.c`), a `CompiledFunction` runs on any number of chains. If a recording cannot
   be compiled, `replay` runs it operation by operation.

`runtime` has BLAS and LAPACK of SciPy, and torch's threads. `include/` has the C headers: special
functions, linear algebra, random numbers, the fused optimizer step.
"""
