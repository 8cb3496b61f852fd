--- Factorisations of random matrices at the processor level of this process: a line "FAR ..." for
--- each whose residual is beyond 40 n eps of the matrix's size, and how many there were.
local tensor = require "accelerate.tensor"
local linalg = tensor.linalg

local count = 0

local function check(what, n, dtype, residual, size)
  local bound = 40 * n * tensor.finfo(dtype).eps * size:abs():max():item()
  local far = residual:abs():max():item()
  count = count + 1
  if far <= bound then return end
  print(("FAR\t%s of %d, %s: %g, at most %g"):format(what, n, dtype, far, bound))
end

tensor.manual_seed(17)
for _, dtype in ipairs { "float32", "float64" } do
  for _, n in ipairs { 3, 16, 33, 48, 50, 65, 130 } do
    local a = tensor.randn(n, n, { dtype = dtype })
    local eye = tensor.eye(n, { dtype = dtype })
    local symmetric = a + a:t()
    local positive = a:mm(a:t()) + eye * n
    local values, vectors = linalg.eigh(symmetric)
    check("eigh", n, dtype, symmetric:mm(vectors) - vectors * values, linalg.matrix_norm(symmetric))
    check("eigh's vectors", n, dtype, vectors:t():mm(vectors) - eye, eye)
    check("eigvalsh", n, dtype, linalg.eigvalsh(symmetric) - values, values)
    local u, s, vh = linalg.svd(a)
    check("svd", n, dtype, (u * s):mm(vh) - a, linalg.matrix_norm(a))
    check("svdvals", n, dtype, linalg.svdvals(a) - s, s)
    local q, r = linalg.qr(a)
    check("qr", n, dtype, q:mm(r) - a, linalg.matrix_norm(a))
    check("qr's q", n, dtype, q:t():mm(q) - eye, eye)
    local l = linalg.cholesky(positive)
    check("cholesky", n, dtype, l:mm(l:t()) - positive, positive)
    check("solve", n, dtype, positive:mm(linalg.solve(positive, a)) - a, positive)
    check("inv", n, dtype, positive:mm(linalg.inv(positive)) - eye, positive)
    local w, v = linalg.eig(a)
    local complex = tensor.complex(a, a * 0)
    check("eig", n, dtype, tensor.view_as_real(complex:mm(v) - v * w), linalg.matrix_norm(a))
    local _, logdet = linalg.slogdet(positive)
    check("slogdet", n, dtype, logdet - linalg.eigvalsh(positive):log():sum(), linalg.matrix_norm(eye))
  end
end
print("checks\t" .. count)
