--- Linear algebra, under the names of PyTorch's torch.linalg: factorisations, linear systems,
--- norms.
---
--- The last two dims of a tensor are matrices, the dims before them a batch. Factorisations take
--- float32, float64, complex64 and complex128; of complex matrices ^T means conjugated, too, unless
--- a function says otherwise. LU, Cholesky, QR and what is solved with them have kernels of their
--- own for real matrices that use all threads. So have eigenvalues and singular values of real
--- matrices of 48 rows and columns or more, but for parts that LAPACK computes (Debian's
--- libopenblas0, found when it is first needed). It computes all of small and of complex matrices
--- and least squares, too, each matrix by one thread. Results do not depend on the number of
--- threads. Factorisations have gradients, which can be differentiated
--- again unless the function names a limit. On a GPU they run through cuSOLVER; eig,
--- lstsq and ldl, and all of them where it is missing, copy tensors to the CPU and back. Several
--- results are several values.
---
--- A function raises for values for which it is not defined: a singular matrix, NaN or inf in svd,
--- eigh and lstsq. The message names the matrix of the batch, counted
--- from 1. NaN in solve, inv and det gives NaN.

local M = {}

for _, part in ipairs { "systems", "spectra", "reflections", "norms", "products" } do
  for name, fn in pairs(require("accelerate.tensor.linalg." .. part)) do M[name] = fn end
end
-- what the parts use among themselves
M.unpack, M.check_matrix_ord, M.reflect, M.ormqr = nil, nil, nil, nil

return require("accelerate.utils.properties").strict("accelerate.tensor.linalg", M)
