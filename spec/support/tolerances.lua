--- How far a result may lie from the same op in float64 on the same inputs: |got - want| <= t *
--- max(1, |want|). One row for each family of ops, one entry for each element type. The half types
--- compute in float32 and round once at the end of each row, so theirs is a few of their roundings
--- (2^-9 for bfloat16, 2^-11 for float16) for cases that chain rows; float64 is compared between
--- processor levels, where only the order of sums and libm's calls in vector code can differ.
return {
  pointwise = { float64 = 1e-14, float32 = 2e-6, bfloat16 = 1.6e-2, float16 = 2e-3 },
  reduce    = { float64 = 1e-13, float32 = 2e-6, bfloat16 = 1.6e-2, float16 = 2e-3 },
  loss      = { float64 = 1e-13, float32 = 2e-6, bfloat16 = 1.6e-2, float16 = 2e-3 },
  linalg    = { float64 = 1e-12, float32 = 1e-5, bfloat16 = 3e-2, float16 = 4e-3 },
}
