--- Sparse tensors: what makes and refuses them, empty ones, repeated positions, threads, gradients,
--- and a graph network beside PyTorch's.  Values and gradients of each function are compared with
--- PyTorch's in spec/kernels/torch_spec.lua.
local core = require "accelerate.core"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local sparse = require "accelerate.sparse"
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local coo = sparse.sparse_coo_tensor
local function int64(v) return tensor.tensor(v, { dtype = "int64" }) end

describe("sparse tensors", function()
  local a = coo({ { 1, 0, 1 }, { 2, 2, 2 } }, { 4, 3, 5 }, { 2, 3 })

  it("have the fields of tensors", function()
    assert.are.same({ 2, 3 }, a.shape)
    assert.are.same({ 2, 3 }, a:size())
    assert.are.equal(3, a:size(-1))
    assert.are.same({ 2, 2, 6, "float32", "cpu", true, "sparse_coo", false },
      { a.ndim, a:dim(), a:numel(), a.dtype, a.device, a.is_sparse, a.layout, a.requires_grad })
    assert.are.same({ 3, 2, 0 }, { a:nnz(), a:sparse_dim(), a:dense_dim() })
    assert.is_true(sparse.is_sparse(a))
    assert.is_false(sparse.is_sparse(tensor.ones(2)))
    assert.is_false(tensor.ones(2).is_sparse)
    assert.are.equal("strided", tensor.ones(2).layout)
    assert.are.equal(tensor.sparse, sparse)
  end)

  it("print positions and values", function()
    assert.are.equal("tensor(indices=tensor([[0, 1],\n                       [2, 2]]),\n" ..
      "       values=tensor([3., 9.]),\n       size=(2, 3), nnz=2, layout=sparse_coo)",
      tostring(a:coalesce()))
  end)

  it("keep repeated positions until they are coalesced", function()
    assert.is_false(a:is_coalesced())
    raises("s:coalesce():indices()", a.indices, a)
    raises("s:coalesce():values()", a.values, a)
    assert.are.same({ 4, 3, 5 }, a:_values():totable())
    local once = a:coalesce()
    assert.is_true(once:is_coalesced())
    assert.are.same({ { 0, 1 }, { 2, 2 } }, once:indices():totable())
    assert.are.same({ 3, 9 }, once:values():totable())
    assert.are.equal(once, once:coalesce())
  end)

  it("take one number for all positions, types and integer positions of 32 bits", function()
    local one = coo(int64({ { 0, 2 } }):to("int32"), 1.5, { 3 }, { dtype = "float64" })
    assert.are.same({ 1.5, 0, 1.5 }, one:to_dense():totable())
    assert.are.equal("float64", one.dtype)
    assert.are.equal("float32", one:float().dtype)
    assert.are.same({ 1, 0, 1 }, coo({ { 0, 2 } }, int64 { 1, 1 }):to_dense():totable())
    assert.are.same({ 1, 2 }, coo({ { 0, 1 } }, { 1, 2 }, { is_coalesced = true }):values():totable())
  end)

  it("may be empty", function()
    for _, size in ipairs { { 3, 4 }, { 0, 4 }, { 3, 0 } } do
      local none = coo({ {}, {} }, {}, size)
      assert.are.equal(0, none:nnz())
      assert.are.same(size, none:to_dense().shape)
      assert.are.same(size, none:coalesce().shape)
      local x = tensor.ones(size[2], 2):requires_grad_()
      local y = none:mm(x)
      assert.are.same({ size[1], 2 }, y.shape)
      assert.are.equal(0, y:sum():item())
      y:sum():backward()
      assert.are.same(x.shape, x.grad.shape)
      assert.are.equal(0, x.grad:abs():sum():item())
      assert.are.equal(0, none:mm(none:t()):nnz())
      assert.are.equal(0, (none + none):nnz())
      assert.are.equal(0, (none * none):nnz())
      assert.are.equal(0, sparse.softmax(none, 2):nnz())
      assert.are.equal(0, sparse.sum(none):item())
      assert.is_string(tostring(none))
    end
    assert.are.equal(0, tensor.zeros(2, 2):to_sparse():nnz())
    assert.are.same({ 2, 0 }, a:mm(tensor.ones(3, 0)).shape)
  end)

  it("refuse positions and sizes that do not fit", function()
    raises("index 3 in dim 2 is outside 0..2", coo, { { 0 }, { 3 } }, { 1 }, { 2, 3 })
    raises("index -1 in dim 1 is outside 0..1", coo, { { -1 }, { 0 } }, { 1 }, { 2, 3 })
    raises("int64 numbers 2^63 of them", coo, { { 0 }, { 1 } }, { 1 }, { 2 ^ 40, 2 ^ 40 })
    local large = coo({ { 0, 3, 0 }, { 2 ^ 40, 5, 2 ^ 40 } }, { 1, 1, 1 }, { 4, 2 ^ 41 }):coalesce()
    assert.same({ { 0, 3 }, { 2 ^ 40, 5 } }, large:indices():totable())
    raises("2 positions and 1 values", coo, { { 0, 1 } }, { 1 }, { 2 })
    raises("size has 1 dims; 2 rows of positions", coo, { { 0 }, { 0 } }, { 1 }, { 2 })
    raises("size 3 of dim 2 differs from that of the values", coo, { { 0 } }, tensor.ones(1, 2), { 1, 3 })
    raises("size[2] must be at least 0, got -1", coo, { { 0 }, { 0 } }, { 1 }, { 2, -1 })
    raises("indices: expected integers", coo, tensor.ones(2, 2), { 1, 2 }, { 2, 2 })
    raises("indices: expected (sparse dims, nnz)", coo, int64 { 1, 2 }, { 1, 2 }, { 3 })
    raises("values: expected numbers", coo, { { 0 } }, tensor.tensor({ true }), { 2 })
    raises("values: expected numbers", coo, { { 0 } }, "1", { 2 })
    raises("size: expected a list of sizes where there are no values", coo, { {} }, {})
    raises("is_coalesced", coo, { { 1, 0 } }, { 1, 2 }, { 2 }, { is_coalesced = true })
    raises("is_coalesced", coo, { { 1, 1 } }, { 1, 2 }, { 2 }, { is_coalesced = true })
    raises("unknown option 'dtyp'", coo, { { 1, 1 } }, { 1, 2 }, { 2 }, { dtyp = "float32" })
  end)

  it("say what they do not have and how to write it", function()
    raises("write s:to_dense():exp(...)", function() return a:exp() end)
    raises("s:to_dense()[...]", function() return a[1] end)
    raises("there is no field or method 'foo'", function() return a.foo end)
    raises("cannot be assigned", function() a.shape2 = 1 end)
    raises("got a sparse tensor (s:to_dense() gives a tensor", tensor.relu, a)
    raises("got a sparse tensor (s:to_dense() gives a tensor", tensor.matmul, tensor.ones(2, 2), a)
    raises("write s:to_dense()", function() return a + 1 end)
    raises("most of its elements are 0", function() return 1 / a end)
    raises("the shapes [2, 3] and [3] differ", function() return a * tensor.ones(3) end)
    raises("the shapes [2, 3] and [3, 2] differ", function() return a + a:t() end)
    raises("of one type on one device", function() return a + a:double() end)
    raises("inner dimensions differ: [2, 3] x [2, 2]", a.mm, a, tensor.ones(2, 2))
    raises("inner dimensions differ: [2, 3] x [2, 3]", a.mm, a, a)
    raises("element types differ: float32 and float64", a.mm, a, tensor.ones(3, 2, { dtype = "float64" }))
    raises("expected a vector", a.mv, a, tensor.ones(3, 2))
    raises("neither matrix is sparse", sparse.mm, tensor.ones(2, 2), tensor.ones(2, 2))
    raises("mat2: expected a sparse matrix or a tensor, got nil", sparse.mm, a)
    raises("of a floating type, got int64", sparse.mm, a:to("int64"), tensor.ones(3, 2))
    raises("with 1 sparse and 1 dense dims", sparse.mm, tensor.ones(2, 2):to_sparse(1), tensor.ones(2, 2))
    raises("dim 3 is out of range", sparse.sum, a, 3)
    raises("listed twice", sparse.sum, a, { 1, -2 })
    raises("expected a sparse tensor", sparse.sum, tensor.ones(2))
    raises("expected a sparse tensor", sparse.softmax, tensor.ones(2), 1)
    raises("the product is [2, 2], input [2, 3]", sparse.sampled_addmm, a, tensor.ones(2, 2),
      tensor.ones(2, 2))
    raises("offset 1 occurs twice", sparse.spdiags, tensor.ones(2, 2), { 1, 1 }, { 2, 2 })
    raises("3 sparse dims of a tensor of 2", sparse.to_sparse, tensor.ones(2, 2), 3)
  end)

  it("refuse plans that name positions outside the matrix", function()
    local product, dots = core._row "_sparse_product", core._row "_sparse_dots"
    local values, dense = tensor.ones(2), tensor.ones(3, 2)
    local good = int64 { 0, 1, 2, 0, 2 }
    assert.are.same({ { 1, 1 }, { 1, 1 } }, product(values, dense, good, nil, 2):totable())
    for _, bad in ipairs { { 0, 1, 2, 0, 3 }, { 0, 1, 2, -1, 2 }, { 0, 3, 2, 0, 2 }, { 0, 1, 9, 0, 2 },
      { 1, 1, 2, 0, 2 }, { 0, 1, 2, 0, 2, 0, 2 } } do
      raises("outside the matrix", product, values, dense, int64(bad), nil, 2)
      raises("outside the matrix", dots, tensor.ones(2, 2), dense, int64(bad), nil, 2)
    end
    raises("does not fit 2 rows and 2 values", product, values, dense, int64 { 0, 1 }, nil, 2)
    raises("must be int64", product, values, dense, tensor.ones(5), nil, 2)
    raises("at least 0", product, values, dense, good, nil, -1)
  end)

  it("have the gradients of finite differences, twice", function()
    tensor.manual_seed(3)
    local options = { dtype = "float64", requires_grad = true }
    local v, x, u = tensor.randn(4, options), tensor.randn(4, 3, options), tensor.randn(3, 2, options)
    local function matrix(values) return coo({ { 2, 0, 2, 0 }, { 3, 1, 3, 0 } }, values, { 3, 4 }) end
    local function chain(values, dense, other)
      local m = matrix(values)
      return m:mm(dense), m:coalesce():t():mm(other), sparse.sampled_addmm(m, other, other:t():mm(m:mm(dense))
        :mm(dense:t()))._data
    end
    assert.is_true(tensor.autograd.gradcheck(chain, { v, x, u }))
    assert.is_true(tensor.autograd.gradgradcheck(chain, { v, x, u }))
  end)

  it("leave gradients with their values", function()
    local v = tensor.tensor({ 1, 2 }, { requires_grad = true })
    local s = coo({ { 0, 1 }, { 1, 0 } }, v, { 2, 2 })
    assert.is_true(s.requires_grad)
    s:mm(tensor.tensor { { 1, 2 }, { 3, 4 } }):sum():backward()
    assert.are.same({ 7, 3 }, v.grad:totable())
    assert.are.same({ { 0, 7 }, { 3, 0 } }, s.grad:to_dense():totable())
    assert.is_false(s:detach().requires_grad)
    local leaf = coo({ { 0 } }, { 1 }, { 2 }, { requires_grad = true })
    leaf:to_dense():sum():backward()
    assert.are.same({ 1 }, leaf.grad:coalesce():values():totable())
  end)

  it("multiply to the same bits with any number of threads", function()
    tensor.manual_seed(5)
    local n, count = 3000, 40000
    local places = tensor.randint(0, n, { 2, count })
    places:select(1, 1):narrow(1, 1, 9000):fill_(17) -- one long row
    local s = coo(places, tensor.randn(count), { n, n })
    local x = tensor.randn(n, 37):requires_grad_()
    local threads, first = core.get_num_threads(), nil
    for _, t in ipairs { 1, 2, 3 } do
      core.set_num_threads(t)
      local m = coo(places, s:_values():clone():requires_grad_(), { n, n })
      x.grad = nil
      local y = m:mm(x)
      y:square():sum():backward()
      local got = { y:detach(), x.grad:clone(), m.grad:_values() }
      first = first or got
      for k = 1, 3 do assert.is_true(got[k]:equal(first[k])) end
    end
    core.set_num_threads(threads)
    local exact = s:double():to_dense():mm(x:detach():double())
    assert.is_true((exact - first[1]:double()):abs():max():item() < 2e-3)
  end)

  it("are multiplied in float32 where they are halves, and under autocast", function()
    local s = coo({ { 0, 1 }, { 1, 0 } }, { 1.5, 2 }, { 2, 2 }, { dtype = "bfloat16" })
    local x = tensor.tensor({ { 1, 2 }, { 3, 4 } }, { dtype = "bfloat16", requires_grad = true })
    local y = s:mm(x)
    assert.are.equal("bfloat16", y.dtype)
    assert.are.same({ { 4.5, 6 }, { 2, 4 } }, y:float():totable())
    y:sum():backward()
    assert.are.same({ "bfloat16", { { 2, 2 }, { 1.5, 1.5 } } }, { x.grad.dtype, x.grad:float():totable() })
    tensor.autocast({ dtype = "bfloat16" }, function()
      assert.are.equal("float32", s:float():mm(x:detach():float()).dtype)
    end)
  end)

  it("train a graph network to PyTorch's losses", function()
    local EDGES, N = { { 0, 1 }, { 0, 2 }, { 1, 2 }, { 2, 3 }, { 3, 4 }, { 3, 5 }, { 4, 5 } }, 6
    local from, to, degree = {}, {}, {}
    local function connect(i, j)
      from[#from + 1], to[#to + 1] = i, j
      degree[i] = (degree[i] or 0) + 1
    end
    for i = 0, N - 1 do connect(i, i) end
    for _, e in ipairs(EDGES) do connect(e[1], e[2]) end
    for _, e in ipairs(EDGES) do connect(e[2], e[1]) end
    local weights = {}
    for k = 1, #from do weights[k] = (degree[from[k]] * degree[to[k]]) ^ -0.5 end
    local adjacency = coo({ from, to }, weights, { N, N }, { dtype = "float64" })
    local function wave(rows, cols)
      local w = (tensor.arange(rows * cols):double() * 1.3):sin():view(rows, cols) * 0.5
      return nn.Parameter(w)
    end
    local function zeros(n) return nn.Parameter(tensor.zeros(n, { dtype = "float64" })) end
    local w1, b1, w2, b2 = wave(N, 4), zeros(4), wave(4, 2), zeros(2)
    local features, labels = tensor.eye(N):double(), int64 { 0, 0, 0, 1, 1, 1 }
    local optimizer = optim.Adam({ w1, b1, w2, b2 }, { lr = 0.05 })
    local EXPECTED = { 0.685509105531, 0.634562535465, 0.580789823976, 0.524190284828, 0.467227400122,
      0.410033783758, 0.356882769658, 0.30411050085, 0.253625738381, 0.207456494692, 0.167647189959,
      0.133491608291, 0.105339635587, 0.0827043782507, 0.0647431392173, 0.0505152593918, 0.0394045634103,
      0.0309646966217, 0.024480435281, 0.0195036538796 }
    for _, expected in ipairs(EXPECTED) do
      local hidden = (adjacency:mm(features:mm(w1)) + b1):relu()
      local loss = nn.functional.cross_entropy(adjacency:mm(hidden:mm(w2)) + b2, labels)
      optimizer:zero_grad()
      loss:backward()
      optimizer:step()
      assert.is_true(math.abs(loss:item() - expected) < 1e-9)
    end
  end)

  it("take arguments by name", function()
    local x = coo({ { 0, 0, 1 }, { 0, 2, 2 } }, { 1, 2, 3 }, { size = { 2, 3 } })
    assert.are.same({ 2, 3 }, x.shape)
    assert.are.same({ 1, 0, 5 }, x:sum({ dim = 1 }):to_dense():totable())
    assert.are.same({ 3, 3 }, sparse.sum(x, { dim = -1, dtype = "float64" }):to_dense():totable())
    assert.are.equal("float64", sparse.sum(x, { dtype = "float64" }).dtype)
    assert.are.same(sparse.softmax(x, 2):to_dense():totable(), x:softmax({ dim = 2 }):to_dense():totable())
    assert.are.equal("float64", sparse.log_softmax(x, { dim = 2, dtype = "float64" }).dtype)
    raises("sparse.softmax: dim is missing (expected an integer)", sparse.softmax, x)
    raises("sparse.softmax: dim 3 is out of range; expected 1..2 or -2..-1", sparse.softmax, x, 3)
    raises("unknown option 'dims'; did you mean 'dim'?", sparse.sum, x, { dims = 1 })
    raises("s:mm(x) a product, and with the sparse one first s + x a sum", tensor.mm, x, tensor.ones(3, 2))
    raises("instead: sparse.sparse_coo_tensor(indices, values, size)",
      function() return sparse.FloatTensor end)
  end)

  it("raise, and nothing else, at junk", function()
    local junk = { nil, 0, -1, 1.5, 0 / 0, "x", true, {}, { {} }, { 1 }, print, tensor.ones(2),
      int64 { { 0 }, { 0 } },
      tensor.empty(0), a, tensor.zeros({}) }
    for name, fn in pairs(sparse) do
      if type(fn) == "function" then
        for i = 0, 16 do
          for j = 0, 16 do
            pcall(fn, junk[i], junk[j], junk[(i * 7 + j) % 17])
            pcall(fn, a, junk[i], junk[j])
          end
        end
      end
      assert.is_string(name)
    end
    for _, method in ipairs { "mm", "mv", "matmul", "add", "sub", "mul", "div", "sum", "softmax", "transpose",
      "size",
      "to", "cuda", "requires_grad_" } do
      for i = 0, 16 do pcall(a[method], a, junk[i], junk[(i * 5) % 17]) end
    end
    assert.are.same({ { 0, 0, 3 }, { 0, 0, 9 } }, a:to_dense():totable())
  end)
end)
