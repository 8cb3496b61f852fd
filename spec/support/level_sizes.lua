--- What takes another way for other sizes and lengths of vectors, at the processor level of this
--- process: factorisations, Fourier transforms, products, sorting. A line "FAR ..." for each whose
--- error is beyond its bound, and how many there were.
local tensor = require "accelerate.tensor"
local fft, linalg = tensor.fft, tensor.linalg

local count = 0

-- The bound is `times` eps of the type and of the largest of `size`.
local function check(what, n, dtype, difference, size, times)
  local bound = times * tensor.finfo(dtype).eps * size:abs():max():item()
  local far = difference:abs():max():item()
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
    check("eigh", n, dtype, symmetric:mm(vectors) - vectors * values, linalg.matrix_norm(symmetric), 40 * n)
    check("eigh's vectors", n, dtype, vectors:t():mm(vectors) - eye, eye, 40 * n)
    check("eigvalsh", n, dtype, linalg.eigvalsh(symmetric) - values, values, 40 * n)
    local u, s, vh = linalg.svd(a)
    check("svd", n, dtype, (u * s):mm(vh) - a, linalg.matrix_norm(a), 40 * n)
    check("svdvals", n, dtype, linalg.svdvals(a) - s, s, 40 * n)
    local q, r = linalg.qr(a)
    check("qr", n, dtype, q:mm(r) - a, linalg.matrix_norm(a), 40 * n)
    check("qr's q", n, dtype, q:t():mm(q) - eye, eye, 40 * n)
    local l = linalg.cholesky(positive)
    check("cholesky", n, dtype, l:mm(l:t()) - positive, positive, 40 * n)
    check("solve", n, dtype, positive:mm(linalg.solve(positive, a)) - a, positive, 40 * n)
    check("inv", n, dtype, positive:mm(linalg.inv(positive)) - eye, positive, 40 * n)
    local w, v = linalg.eig(a)
    local complex = tensor.complex(a, a * 0)
    check("eig", n, dtype, tensor.view_as_real(complex:mm(v) - v * w), linalg.matrix_norm(a), 40 * n)
    local _, logdet = linalg.slogdet(positive)
    check("slogdet", n, dtype, logdet - linalg.eigvalsh(positive):log():sum(), logdet, 40 * n)
  end
end

-- Fourier transforms beside the sums that they are, in complex128, which are less exact than a
-- transform in float64; the bound is one of the size of a sum.
for _, dtype in ipairs { "float32", "float64" } do
  local times = dtype == "float64" and 64 or 16
  for _, n in ipairs { 1, 2, 7, 16, 30, 64, 97, 101, 128, 200, 256, 288, 400, 509, 512, 600, 768, 1024 } do
    local k = tensor.arange(0, n, { dtype = "float64" })
    local angle = tensor.outer(k, k):remainder(n) * (2 * math.pi / n)
    local sums = tensor.complex(angle:cos(), -angle:sin())
    for _, lines in ipairs { 1, 5, 33 } do
      local x = tensor.randn(lines, n, { dtype = dtype })
      local z = tensor.complex(x, tensor.randn(lines, n, { dtype = dtype }))
      local want = z:to "complex128":matmul(sums)
      local real = tensor.complex(x, x * 0):to "complex128":matmul(sums)
      local unit = tensor.ones(1) * math.sqrt(n)
      check("fft", n, dtype, fft.fft(z):to "complex128" - want, unit, times)
      local columns = fft.fft(z:t():contiguous(), nil, 1)
      check("fft along columns", n, dtype, columns:to "complex128" - want:t(), unit, times)
      check("ifft", n, dtype, fft.ifft(fft.fft(z)) - z, unit / unit, times)
      local half = real:narrow(2, 1, math.floor(n / 2) + 1)
      check("rfft", n, dtype, fft.rfft(x):to "complex128" - half, unit, times)
      check("irfft", n, dtype, fft.irfft(fft.rfft(x), n) - x, unit / unit, times)
    end
  end
end

-- Products of small whole numbers are exact, whatever the order of their sums.
for _, dtype in ipairs { "float32", "float64" } do
  for m = 1, 40, 3 do
    for _, n in ipairs { 1, 15, 16, 33, 100 } do
      local k = math.ceil(2 ^ 18 / (m * n)) % 3000 + m
      local a, b = tensor.randint(-4, 4, { m, k }):to(dtype), tensor.randint(-4, 4, { k, n }):to(dtype)
      local want = a:long():matmul(b:long()):to(dtype)
      check("product", k, dtype, a:mm(b) - want, want, 0)
      check("product of transposed matrices", k, dtype,
        a:t():contiguous():t():mm(b:t():contiguous():t()) - want, want, 0)
    end
  end
end

for _, dtype in ipairs { "float32", "float64", "int64", "uint8" } do
  for _, n in ipairs { 1, 2, 15, 31, 64, 100, 257, 1000, 5000 } do
    local x = tensor.randint(0, 200, { 3, n }):to(dtype)
    local sorted, order = x:sort(2)
    local steps = sorted:narrow(2, 2, n - 1):double() - sorted:narrow(2, 1, n - 1):double()
    check("sort", n, "float64", x:gather(2, order):double() - sorted:double(), sorted:double(), 0)
    count = count + 1
    if not steps:ge(0):all():item() then print(("FAR\tsort of %d, %s: out of order"):format(n, dtype)) end
  end
end
print("checks\t" .. count)
