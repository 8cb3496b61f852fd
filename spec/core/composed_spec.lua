--- Functions that lua/accelerate/tensor writes of rows: draws, devices, arguments. Their values are
--- compared with PyTorch's in spec/kernels/torch_spec.lua.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local message = require("spec.support.messages").message

-- Mean and variance of n draws are within five of their standard errors.
local function check_moments(x, mean, variance, fourth)
  local n = x:numel()
  local d = x:double()
  local m = d:mean():item()
  assert(math.abs(m - mean) < 5 * math.sqrt(variance / n), ("mean %g, expected %g"):format(m, mean))
  local v = d:var():item()
  local error_of_v = math.sqrt((fourth - variance ^ 2) / n)
  assert(math.abs(v - variance) < 5 * error_of_v, ("variance %g, expected %g"):format(v, variance))
end

describe("functions written of rows", function()
  it("are there at the first use, as function and as method", function()
    assert.equal(core.zeros(2).clip, core.zeros(2).clip)
    assert.is_function(tensor.hstack)
    assert.matches('there is no field or method "multinomal"; did you mean "multinomial"', message(function()
      return core.zeros(2).multinomal
    end))
    assert.matches("there is no function hstak; did you mean hstack",
      message(function() return tensor.hstak end))
  end)

  it("read arguments as rows do", function()
    local x = core.randn(3, 4)
    assert.matches("diff: dim 3 is out of range", message(x.diff, x, 1, 3))
    assert.matches('diff: there is no option "dims"; did you mean "dim"', message(x.diff, x, { dims = 1 }))
    assert.matches("diff: argument 1 %(x%) is missing", message(tensor.diff))
    assert.matches("diff: argument 2 %(n%): expected an integer, got string", message(x.diff, x, "1"))
    assert.matches("equal: argument 2 %(b%): expected a tensor, got 3", message(x.equal, x, 3))
    assert.matches("equal: argument 1 %(a%): expected a tensor, got nil", message(tensor.equal))
    assert.is_true(x:equal(x, "more"))
    assert.matches('interpolation: expected "linear", .* got "cubic"', message(x.quantile, x, 0.5, {
      interpolation = "cubic",
    }))
    assert.matches("6 arguments given, at most 5 expected", message(x.std_mean, x, 1, nil, 0, true, 5))
    assert.matches("hstack: tensors: expected at least one tensor", message(tensor.hstack, {}))
  end)

  it("refuse what has no meaning, with the shapes", function()
    local x = core.randn(3, 4)
    assert.matches("cross: expected size 3 along dim %-1, got shapes %[3, 4%] and %[3, 4%]", message(x.cross,
      x, x))
    assert.matches("inner: the last sizes differ: %[3, 4%] and %[3%]", message(x.inner, x, core.randn(3)))
    assert.matches("mT: expected a matrix", message(function() return core.randn(3).mT end))
    assert.matches("quantile: q must be in %[0, 1%]", message(x.quantile, x, 1.5))
    assert.matches("quantile: q must be in %[0, 1%], got nan", message(x.quantile, x, 0 / 0))
    assert.matches("quantile: expected float32 or float64, got int64", message(tensor.quantile,
      tensor.arange(3), 0.5))
    assert.matches("all sizes must be equal, got %[2, 2, 3%]",
      message(core.zeros(2, 2, 3).fill_diagonal_, core.zeros(2, 2, 3), 1))
    assert.matches("shapes %[2%] and %[3%] do not broadcast", message(tensor.broadcast_shapes, { 2 }, { 3 }))
    assert.matches("finfo: expected a floating type, got 'int64'", message(tensor.finfo, "int64"))
    assert.matches("iinfo: expected an integer type, got 'float'", message(tensor.iinfo, "float"))
    assert.same({ 0, 4 }, core.ones(3):combinations(4).shape)
    assert.same({ 1, 40 }, core.ones(1):combinations(40, true).shape)
    assert.matches("combinations: more than 67108864 numbers of 100 elements, 50 at a time",
      message(tensor.combinations, core.ones(100), 50))
    assert.matches("tensor_split: sections must be from 1 to 4096, got 9007199254740992",
      message(tensor.tensor_split, core.ones(4), 2 ^ 53))
    assert.matches("block_diag: entry 1: expected at most 2 dims", message(tensor.block_diag, { core.zeros(1,
      1, 1) }))
  end)

  it("as_tensor, to, type_as give the tensor itself where nothing changes", function()
    local x = core.randn(3)
    assert.equal(x, tensor.as_tensor(x))
    assert.equal(x, tensor.as_tensor(x, { dtype = "float32" }))
    assert.equal("float64", tensor.as_tensor(x, { dtype = "float64" }).dtype)
    assert.equal(x, x:type_as(core.randn(1)))
    assert.equal(x, x:cpu())
    assert.is_false(x.is_cuda)
    assert.matches("new_zeros: argument 1 %(x%): expected a tensor, got nil", message(x.new_zeros))
    assert.matches("cpu: argument 1 %(x%) is missing", message(x.cpu))
    if core.device_count("cuda") == 0 then assert.matches("cuda", message(x.cuda, x)) end
    assert.equal("float64", tensor.promote_types("float32", "float64"))
    assert.equal("float32", tensor.promote_types("bfloat16", "float16"))
  end)

  it("fields cannot be set", function()
    assert.matches('"T" cannot be set', message(function() core.zeros(2).T = 1 end))
    assert.matches('"is_cuda" cannot be set', message(function() core.zeros(2).is_cuda = true end))
  end)

  it("inference_mode records nothing", function()
    local w = core.ones(2, { requires_grad = true })
    assert.is_false(tensor.inference_mode(function() return (w * 2).requires_grad end))
  end)

  describe("draws", function()
    local N = 20000
    it("have their moments", function()
      core.manual_seed(5)
      local x = core.empty(N, { dtype = "float64" })
      check_moments(x:uniform_(-1, 3), 1, 16 / 12, 4 ^ 4 / 80)
      check_moments(x:normal_(2, 3), 2, 9, 3 * 81)
      check_moments(x:exponential_(2), 0.5, 0.25, 9 / 16)
      local p = 0.3
      local v = (1 - p) / p ^ 2
      check_moments(x:geometric_(p), 1 / p, v, v ^ 2 * (9 + p ^ 2 / (1 - p)))
      check_moments(x:bernoulli_(0.2), 0.2, 0.16, 0.2 * 0.8 * (1 - 3 * 0.16))
      check_moments(x:log_normal_(0, 0.5):log(), 0, 0.25, 3 / 16)
      check_moments(x:cauchy_(1, 2):sub(1):div(2):atan(), 0, math.pi ^ 2 / 12, math.pi ^ 4 / 80)
      check_moments(x:random_(0, 10), 4.5, 8.25, 120.8625)
      check_moments(tensor.normal(core.full({ N }, 3), 2), 3, 4, 48)
      check_moments(tensor.normal(core.full({ N }, 3), core.full({ N }, 2)), 3, 4, 48)
      check_moments(tensor.normal(1, 2, { N }), 1, 4, 48)
      check_moments(tensor.bernoulli(core.full({ N }, 0.7)), 0.7, 0.21, 0.7 * 0.3 * (1 - 3 * 0.21))
      for _, rate in ipairs { 0.2, 7, 11, 400 } do
        check_moments(tensor.poisson(core.full({ N }, rate)), rate, rate, rate + 3 * rate ^ 2)
      end
    end)

    it("of poisson are counts, of each rate", function()
      local rate = tensor.tensor({ { 0, 2.5 }, { 30, 1e6 } }, { dtype = "bfloat16" })
      local draw = tensor.poisson(rate, { generator = core.Generator(1) })
      assert.same({ 2, 2 }, draw.shape)
      assert.equal("bfloat16", draw.dtype)
      assert.equal(0, draw[1][1]:item())
      assert(draw:equal(draw:round()) and draw:equal(tensor.poisson(rate, { generator = core.Generator(1) })))
      assert.same({ 0 }, tensor.poisson(core.zeros(0)).shape)
      for _, wrong in ipairs { -1, math.huge, 0 / 0 } do
        assert.matches("poisson: expected finite rates of at least 0", message(tensor.poisson,
          tensor.tensor { 1, wrong }))
      end
      assert.matches("poisson: expected a floating type, got int64", message(tensor.poisson, core.arange(3)))
    end)

    it("normal says what is wrong", function()
      assert.matches("normal: mean: expected a tensor or a number, got nil", message(tensor.normal))
      assert.matches("normal: std: expected a tensor or a number, got 'a'", message(tensor.normal, 1, "a"))
      assert.matches("normal: std must be at least 0, got %-1", message(tensor.normal, 1, -1, { 2 }))
      assert.matches("normal: expected a shape beside two numbers", message(tensor.normal, 1, 1))
    end)

    it("keep type and place, and take a generator", function()
      for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
        local a, b = core.zeros(4, 3, { dtype = dtype }), core.zeros(3, 4, { dtype = dtype }):t()
        for _, name in ipairs { "uniform_", "normal_", "exponential_", "cauchy_", "log_normal_",
          "bernoulli_" } do
          local first = core.Generator(3)
          assert.equal(a, a[name](a, { generator = first }))
          b[name](b, { generator = core.Generator(3) })
          assert(a:equal(b), name)
          assert.equal(dtype, a.dtype)
          a[name](a, { generator = first })
          assert.is_false(a:equal(b), name)
        end
      end
      local i = core.zeros(100, { dtype = "uint8" }):random_()
      assert(i:long():amax():item() > 200)
      assert.matches("uniform_: expected a floating type, got int64", message(function()
        return core.zeros(2, { dtype = "int64" }):uniform_()
      end))
      assert.matches("uniform_: from %(2%) must not be above to %(1%)", message(function()
        return core.zeros(2):uniform_(2, 1)
      end))
      assert.matches("normal_: a leaf that requires a gradient cannot be changed in place", message(function()
        return core.zeros(2, { requires_grad = true }):normal_()
      end))
    end)

    it("multinomial draws by weights", function()
      core.manual_seed(11)
      local w = tensor { { 1, 2, 0, 5 }, { 0, 0, 3, 0 } }
      local places = w:multinomial(N, true)
      assert.same({ 2, N }, places.shape)
      assert.equal("int64", places.dtype)
      local counts = places[1]:bincount({ minlength = 4 }):double():div(N):totable()
      for k, share in ipairs { 1 / 8, 2 / 8, 0, 5 / 8 } do
        assert(math.abs(counts[k] - share) <= 5 * math.sqrt(share * (1 - share) / N), k)
      end
      assert(places[2]:eq(2):all():item())
      -- without replacement: all different, and the first one as likely as its weight says
      for _ = 1, 1500 do
        local drawn = w[1]:multinomial(3):totable()
        table.sort(drawn)
        assert.same({ 0, 1, 3 }, drawn)
      end
      local one = core.ones(N, 1) * w[1]
      local first = one:multinomial(1):view(-1):bincount({ minlength = 4 }):double():div(N):totable()
      for k, share in ipairs { 1 / 8, 2 / 8, 0, 5 / 8 } do
        assert(math.abs(first[k] - share) <= 5 * math.sqrt(share * (1 - share) / N), k)
      end
      assert.matches("2 draws without replacement, but a row has 1 weights above 0", message(w.multinomial, w,
        2))
      assert.matches("got negative, infinite or NaN ones", message(function() return (-w):multinomial(1) end))
      assert.matches("expected 1 or 2 dims, got %[1, 1, 1%]", message(function()
        return core.ones(1, 1, 1):multinomial(1)
      end))
    end)

    it("gumbel_softmax draws by logits, and hard draws have the soft gradient", function()
      core.manual_seed(2)
      local logits = tensor({ 0.1, 0.2, 0.7 }):log()
      local hard = tensor.gumbel_softmax(logits:expand(N, 3), { hard = true })
      local share = hard:mean(1):totable()
      for k, p in ipairs { 0.1, 0.2, 0.7 } do
        assert(math.abs(share[k] - p) <= 5 * math.sqrt(p * (1 - p) / N), k)
      end
      local a, b = core.zeros(2, 3, { requires_grad = true }), core.zeros(2, 3, { requires_grad = true })
      local w = core.randn(2, 3)
      local soft = tensor.gumbel_softmax(a, 0.5, { generator = core.Generator(1) });
      (soft * w):sum():backward()
      local one = tensor.gumbel_softmax(b, 0.5, true, { generator = core.Generator(1) });
      (one * w):sum():backward()
      assert(a.grad:equal(b.grad))
      assert(soft:sum(-1):allclose(core.ones(2)))
      assert.matches("tau must be above 0, got 0", message(tensor.gumbel_softmax, a, 0))
    end)
  end)
end)

describe("special functions", function()
  it("have the type of their argument; integers give float32", function()
    for _, dtype in ipairs { "float64", "float32", "bfloat16" } do
      assert.equal(dtype, tensor.tensor({ 0.5, 2 }, { dtype = dtype }):lgamma().dtype)
    end
    local x = tensor.arange(1, 6):lgamma()
    assert.equal("float32", x.dtype)
    assert.near(math.log(24), x[5]:item(), 1e-6)
    assert.same({ 0 }, tensor.zeros(0):digamma().shape)
  end)

  it("have gradients of gradients", function()
    local x = tensor.tensor({ 0.7, 3.5 }, { dtype = "float64", requires_grad = true })
    local g = core.grad(x:lgamma():sum(), x, { create_graph = true })
    local gg = core.grad(g:sum(), x)
    assert.near(0, (gg - tensor.polygamma(1, x:detach())):abs():max():item(), 1e-12)
  end)

  it("refuse orders and dims that are not there", function()
    local x = tensor.ones(2)
    assert.matches("polygamma: n must be at least 0, got %-1", message(tensor.polygamma, -1, x))
    assert.matches("mvlgamma: p must be at least 1, got 0", message(x.mvlgamma, x, 0))
    assert.matches("special.ndtr: argument 1 %(x%): expected a tensor, got number 1",
      message(tensor.special.ndtr, 1))
  end)
end)

describe("running extremes and the like", function()
  it("of nothing and of one number", function()
    assert.same({ 0, 3 }, (tensor.zeros(0, 3):cummax(1)).shape)
    assert.same({ 2, 0 }, { tensor.tensor(2):cummin(1):item(), select(2, tensor.tensor(2):cummin(1)):item() })
    assert.matches("mode: dim 1 of %[0%] is empty", message(function() return tensor.zeros(0):mode() end))
    assert.matches("nanmedian: dim 2 of %[2, 0%] is empty",
      message(function() return tensor.zeros(2, 0):nanmedian(2) end))
  end)

  it("the last one of the most frequent numbers, for long rows too", function()
    local list = {}
    for i = 1, 1000 do list[i] = i % 7 end
    local value, at = tensor.tensor(list):mode()
    assert.same({ 1, 994 }, { value:item(), at:item() })
  end)

  it("refuse what has no meaning", function()
    local x, i = tensor.ones(2, 2), tensor.ones(2, { dtype = "int64" })
    assert.matches("gcd: argument 2: expected integers, got float32", message(tensor.gcd, i, x))
    assert.matches("lcm: argument 1: expected integers, got float32", message(tensor.lcm, x, i))
    assert.matches("renorm: maxnorm must be at least 0, got %-1", message(x.renorm, x, 2, 1, -1))
    assert.matches("renorm: p must be above 0, got 0", message(x.renorm, x, 0, 1, 1))
    assert.matches("renorm: expected at least 2 dims, got %[2%]", message(i.renorm, tensor.ones(2), 2, 1, 1))
  end)
end)

describe("functions of tables", function()
  local x = tensor.tensor({ 0.3, 6.1, 27 }, { dtype = "float64", requires_grad = true })

  it("have gradients, and gradients of those", function()
    for _, name in ipairs { "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "modified_bessel_k0",
      "modified_bessel_k1", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1", "airy_ai",
      "spherical_bessel_j0" } do
      assert.is_true(tensor.autograd.gradcheck(tensor.special[name], { x }), name)
      if name:find("1", 1, true) or name == "airy_ai" then
        assert.is_true(tensor.autograd.gradgradcheck(tensor.special[name], { x }), name)
      end
    end
    local left = tensor.tensor({ -12.5, -10.2, -9.7, -3, 0.9, 1.1 },
      { dtype = "float64", requires_grad = true })
    assert.is_true(tensor.autograd.gradcheck(tensor.special.airy_ai, { left }))
    for name, fn in pairs(require "accelerate.tensor.polynomials") do
      assert.is_true(tensor.autograd.gradcheck(function(v) return fn(v / 9, 4) end, { x }), name)
    end
  end)

  it("refuse what they have no value or gradient for", function()
    local special, masked, windows = tensor.special, tensor.masked, tensor.signal.windows
    assert.matches("special.zeta: argument 1 %(x%) requires a gradient", message(special.zeta, x, 2))
    assert.matches("igamma: argument 1 %(a%) requires a gradient", message(tensor.igamma, x, x))
    assert.matches("legendre_polynomial_p: n must be at most 1000, got 1001",
      message(special.legendre_polynomial_p, x, 1001))
    assert.matches("special.xlog1py: expected a tensor, got 1 and 2", message(special.xlog1py, 1, 2))
    assert.matches("masked.sum: mask: expected bool, got float64",
      message(masked.sum, x, { mask = x:detach() }))
    assert.matches("masked.median: expected a floating%-point tensor, got int64",
      message(masked.median, tensor.arange(3)))
    assert.matches("windows.hann: M must be at least 0, got %-1", message(windows.hann, -1))
    assert.matches("windows.gaussian: std must be above 0, got 0", message(windows.gaussian, 3, { std = 0 }))
    assert.matches("general_cosine: a: expected a list of numbers, got 5",
      message(windows.general_cosine, 3, 5))
    assert.matches("kaiser: dtype must be a floating type, got int64",
      message(windows.kaiser, 3, { dtype = "int64" }))
  end)
end)

describe("copies, histograms, segments", function()
  local x = tensor.arange(6):float():view(2, 3)

  it("histograms put values at the edges where the edges say", function()
    for _, dtype in ipairs { "float32", "float64" } do
      for _, bins in ipairs { 1, 3, 7, 100 } do
        local edges = tensor.linspace(-1.7, 2.9, bins + 1, { dtype = "float64" }):to(dtype)
        local step = dtype == "float32" and 2 ^ -22 or 2 ^ -50
        local inf = tensor.tensor({ 1 / 0, -1 / 0, 0 / 0 }, { dtype = dtype })
        local values = tensor.cat({ edges, edges * (1 + step), edges * (1 - step), inf })
        local found, same = values:histogram(bins, { range = { -1.7, 2.9 } })
        assert.is_true(same:eq(edges):all():item())
        local list, counts = edges:totable(), found:totable()
        for b = 1, bins do
          local count = 0
          for _, v in ipairs(values:totable()) do
            if v >= list[b] and (v < list[b + 1] or b == bins and v == list[b + 1]) then count = count + 1 end
          end
          assert.are.equal(count, counts[b])
        end
      end
    end
    -- bins narrower than the type's steps
    local near = tensor.tensor({ 1e8, 1e8 + 8, 1e8 + 16 })
    assert.are.equal(3, (near:histogram(100)):sum():item())
  end)

  it("histc leaves out what is outside, and NaN", function()
    local some = tensor.tensor({ -3, -3.001, 3, 3.001, 0 / 0, 1 / 0, -1 / 0, 0, 2.999, -1 })
    assert.are.same({ 1, 1, 1, 2 }, some:histc(4, -3, 3):totable())
    assert.are.same({ 0, 2, 1 }, tensor.tensor({ 5, 5, 7, 9 }, { dtype = "int64" }):histc(3, 2, 8):totable())
    assert.are.equal(2, tensor.full({ 2 }, 0.5):half():histc(5000, 0, 1):sum():item())
  end)

  it("a cross product of any dim, with gradients", function()
    local a, b = tensor.tensor({ { 1, 2, 3 }, { 0, 1, 0 } }):requires_grad_(), tensor.tensor({ 4, 5, 6 })
    local c = tensor.cross(a, b)
    assert.are.same({ { -3, 6, -3 }, { 6, 0, -4 } }, c:totable())
    c:sum():backward()
    assert.are.same({ { -1, 2, -1 }, { -1, 2, -1 } }, a.grad:totable())
    assert.are.same({ { -3, 6 }, { 6, 0 }, { -3, -4 } },
      a:detach():t():cross(b:view(3, 1):expand(3, 2), 1):totable())
  end)

  it("refuse what does not fit", function()
    assert.matches("as_strided_copy: positions 1 to 6 are outside the 6 elements of x",
      message(x.as_strided_copy, x, { 2, 3 }, { 3, 1 }, 1))
    assert.matches("put: index has 2 elements, source 1",
      message(x.put, x, tensor.zeros({ 2 }, { dtype = "int64" }), tensor.ones(1)))
    assert.matches("fill: value: expected a number or a tensor of 0 dims, got %[2%]",
      message(x.fill, x, tensor.ones(2)))
    assert.matches("nonzero_static: size must be at least 0, got %-1", message(x.nonzero_static, x, -1))
    assert.matches("frexp: expected a floating%-point tensor, got int64",
      message(tensor.frexp, tensor.arange(2)))
    assert.matches("nextafter: one of the tensors must be of a floating%-point type, got int64 and int32",
      message(tensor.nextafter, tensor.arange(3), tensor.arange(3):int()))
    local mixed = tensor.nextafter(tensor.arange(3), tensor(5, { dtype = "float16" }):expand(3))
    assert.equal("float16", mixed.dtype)
    assert.same({ 2 ^ -24, 1 + 2 ^ -10, 2 + 2 ^ -9 }, mixed:tolist())
    assert.matches("histogram: bins: expected a number from 1", message(x.histogram, x, 0))
    assert.matches("histogram: bins: expected edges that rise",
      message(x.histogram, x, tensor.tensor { 1, 0 }))
    assert.matches("histogram: range: expected 2 numbers", message(x.histogram, x, { range = { 1 } }))
    assert.matches("histogramdd: bins: expected an entry for each of 3 dims, got 1",
      message(x.histogramdd, x, { 2 }))
    assert.matches("segment_reduce: expected lengths or offsets", message(x.segment_reduce, x, "sum"))
    assert.matches("lengths along dim 1 must add up to its size, 2",
      message(x.segment_reduce, x, "sum", { lengths = tensor.tensor({ 3 }, { dtype = "int64" }) }))
    assert.matches("gradient: dim 1 of %[2, 3%] needs at least 3 positions",
      message(x.gradient, x, { edge_order = 2 }))
    assert.matches("gradient: edge_order must be 1 or 2, got 3", message(x.gradient, x, { edge_order = 3 }))
    assert.matches("cov: fweights: expected a vector of 3 numbers, got %[2%]",
      message(x.cov, x, { fweights = tensor.ones({ 2 }, { dtype = "int64" }) }))
  end)
end)

describe("results that are left out", function()
  it("leave no gap: unique and unique_consecutive of a dim", function()
    local x = tensor.tensor { { 1, 2 }, { 1, 2 }, { 3, 4 } }
    for _, name in ipairs { "unique", "unique_consecutive" } do
      assert.equal(1, select("#", x[name](x, { dim = 1 })), name)
      local values, counts = x[name](x, { dim = 1, return_counts = true })
      assert.same({ { { 1, 2 }, { 3, 4 } }, { 2, 1 } }, { values:totable(), counts:totable() }, name)
      assert.equal(2, select("#", x[name](x, { return_counts = true })), name)
    end
  end)

  it("index_fill writes the one place of a scalar once", function()
    local x, value = tensor.tensor(1, { dtype = "float64", requires_grad = true }),
      tensor.tensor(4, { dtype = "float64", requires_grad = true })
    local filled = x:index_fill(1, tensor.zeros({ 2 }, { dtype = "int64" }), value)
    assert.same({ 4, {} }, { filled:item(), filled.shape })
    local gx, gv = core.grad(filled, { x, value })
    if type(gx) == "table" then gx, gv = gx[1], gx[2] end
    assert.same({ 0, 1 }, { gx:item(), gv:item() })
  end)

  it("errors name the function that was called", function()
    local x, nan = tensor { { 1, 2 }, { 3, 4 } }, tensor { { 0 / 0, 1 }, { 1, 2 } }
    local places = tensor({ { 5, 0 } }, { dtype = "int64" })
    for _, reduce in ipairs { "sum", "prod", "mean" } do
      for _, include_self in ipairs { true, false } do
        assert.matches("^[^ ]* scatter_reduce: index 5 at position",
          message(tensor.scatter_reduce, x, 1, places, x, reduce, include_self))
      end
    end
    assert.matches("^[^ ]* index_reduce: index 5 at position",
      message(tensor.index_reduce, x, 1, places[1], x,
      "prod"))
    for _, name in ipairs { "eigvalsh", "eigvals", "svdvals", "cond", "matrix_rank", "pinv", "matrix_sqrth",
      "polar" } do
      assert.matches("^[^ ]* linalg." .. name .. ": the matrix has elements that are not finite",
        message(tensor.linalg[name], nan))
    end
    assert.matches("^[^ ]* linalg.norm: the matrix has elements", message(tensor.linalg.norm, nan, "nuc"))
    for _, name in ipairs { "vstack", "hstack", "dstack", "column_stack", "row_stack" } do
      assert.matches("^[^ ]* " .. name .. ": tensor 2 of shape %[3, 5, 6%] does not join",
        message(tensor[name], { tensor.ones(2, 3, 4), tensor.ones(3, 5, 6) }))
    end
    for _, name in ipairs { "zeros", "ones", "empty" } do
      assert.matches("^[^ ]* new_" .. name .. ": size 1 is negative: %-1", message(x["new_" .. name], x, -1))
    end
    assert.matches("^[^ ]* new_full: argument 2 %(fill_value%)", message(x.new_full, x, { 2 }, "x"))
    assert.matches("^[^ ]* new_tensor: ragged table", message(x.new_tensor, x, { { 1 }, { 2, 3 } }))
  end)

  it("errors name the function that was called, whatever it is made of", function()
    local F = require "accelerate.nn.functional"
    local x = core.randn(2, 3)
    local seven, mask = core.ones(7), core.tensor(1.5)
    for name, call in next, {
      div = function() x:div(seven, { rounding_mode = "floor" }) end,
      div_ = function() x:div_(seven, { rounding_mode = "trunc" }) end,
      masked_fill = function() x:masked_fill(x, mask) end,
      masked_fill_ = function() x:masked_fill_(x, mask) end,
      scatter = function() x:scatter(1, core.full({ 2, 3 }, 9):long(), 2, { reduce = "multiply" }) end,
      softmin = function() F.softmin(x, 9) end,
      normalize = function() F.normalize(x, { dim = 9 }) end,
      lp_pool2d = function() F.lp_pool2d(core.randn(1, 1, 4, 4), 2, 5) end,
      lp_pool3d = function() F.lp_pool3d(core.randn(1, 1, 4, 4, 4), 2, 5) end,
      max_unpool2d = function()
        F.max_unpool2d(core.randn(1, 1, 1, 1), core.full({ 1, 1, 1, 1 }, 9):long(), 2)
      end,
      margin_ranking_loss = function() F.margin_ranking_loss(x, seven, x) end,
      hinge_embedding_loss = function() F.hinge_embedding_loss(x, seven) end,
      std_mean = function() tensor.std_mean(x, 7) end,
      inverse = function() x:inverse() end,
    } do
      local said = message(call)
      assert.matches("^[^ ]* " .. name .. ": ", said)
      assert.is_nil(said:find("stack traceback", 1, true), said)
    end
    -- a truth value is the number 1 or 0, with a gradient and without one
    assert.same(x:floor():totable(),
      x:clone():requires_grad_():div(true, { rounding_mode = "floor" }):totable())
  end)

  it("a function of the script inside one keeps its own errors", function()
    local F = require "accelerate.nn.functional"
    local x = core.randn(2, 3)
    local said = message(F.triplet_margin_with_distance_loss, x, x, x, {
      distance_function = function(a)
        local sum = a:sum(9) -- (a tail call would leave no trace of this function)
        return sum
      end,
    })
    assert.matches("^[^ ]* sum: dim 9 is out of range", said)
  end)

  it("full_like, randperm and normal take what PyTorch's take", function()
    local x = tensor { { 1, 2 }, { 3, 4 } }
    assert.matches("full_like: argument 2 %(value%): expected a number or a tensor of 0 dims without " ..
      "gradient, " ..
      "got a float32 tensor of shape %[1%]", message(tensor.full_like, x, tensor { 3 }))
    assert.matches("shape %[%] that requires a gradient", message(tensor.full_like, x,
      tensor(3, { requires_grad = true })))
    for _, dtype in ipairs { "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64" } do
      local function generator() return tensor.Generator(3) end
      local p = tensor.randperm(200, { dtype = dtype, generator = generator() })
      assert.equal(dtype, p.dtype)
      assert.is_true(p:long():equal(tensor.randperm(200, { generator = generator() })))
      assert.is_true(p:equal(tensor.randperm { n = 200, dtype = dtype, generator = generator() }))
    end
    assert.is_true(tensor.randperm(3, { dtype = "float32", requires_grad = true }).requires_grad)
    assert.equal(257, tensor.randperm(257, { dtype = "bfloat16" }):numel())
    assert.matches("randperm: uint8 holds the integers below 256, got n = 257", message(tensor.randperm, 257,
      { dtype = "uint8" }))
    assert.matches("randperm: float16 holds the integers below 2049", message(tensor.randperm, 2050,
      { dtype = "float16" }))
    assert.matches("randperm: dtype: expected a type of integers or of floating numbers, got bool",
      message(tensor.randperm, 3, { dtype = "bool" }))
    local mean = tensor { 0, 1e6 }
    local function drawn(...)
      tensor.manual_seed(4)
      return tensor.normal(...)
    end
    local expected = drawn(mean, 1)
    assert.is_true(expected:equal(drawn(mean)))
    assert.is_true(expected:equal(drawn { mean = mean, std = 1 }))
    assert.is_true(drawn(0, 2, { 3 }):equal(drawn { mean = 0, std = 2, size = { 3 } }))
    assert.equal("float64", drawn({ mean = 0, std = 2, size = { 3 }, dtype = "float64" }).dtype)
    assert.is_true(drawn(mean, { generator = tensor.Generator(4) }):equal(
      drawn(mean, 1, { generator = tensor.Generator(4) })))
    assert.matches("normal: expected mean, std and size either by position or in one table",
      message(tensor.normal, { mean = 0 }, 3))
    assert.matches("normal: size: expected none beside a tensor", message(tensor.normal,
      { mean = mean, std = 1, size = { 2 } }))
    for _, replacement in ipairs { true, false } do
      assert.same({ 0, 2 }, tensor.ones(0, 3):multinomial(2, replacement).shape)
    end
    assert.matches("multinomial: 4 draws without replacement, but a row has 3 weights", message(
      tensor.multinomial, tensor.ones(0, 3), 4))
    assert.matches("multinomial: 1 draws with replacement, but a row has 0 weights", message(
      tensor.multinomial, tensor.ones(2, 0), 1, true))
    for _, name in ipairs { "manual_seed", "manual_seed_all" } do
      tensor.cuda[name](9)
      local first = tensor.rand(2)
      tensor.manual_seed(9)
      assert.is_true(first:equal(tensor.rand(2)))
      assert.matches("cuda." .. name .. ": seed must be an integer, got 'a'", message(tensor.cuda[name], "a"))
    end
  end)

  it("softmin has a type", function()
    local y = require("accelerate.nn.functional").softmin(tensor.arange(3), 1, "float64")
    assert.equal("float64", y.dtype)
    assert.is_true(y[1]:item() > y[2]:item())
  end)

  it("integers stay integers: addr of bool, addbmm", function()
    local yes, i = tensor.ones({ 2 }, { dtype = "bool" }), tensor.ones({ 1, 2, 2 }, { dtype = "int64" })
    assert.equal("bool", tensor.addr(tensor.zeros({ 2, 2 }, { dtype = "bool" }), yes, yes).dtype)
    assert.equal("int64", i[1]:addbmm(i, i, 2, 3).dtype)
    assert.matches("addbmm: beta 0.5 does not fit tensors of int64", message(tensor.addbmm, i[1], i, i, 0.5))
  end)

  it("kron: short rows, one row, no elements", function()
    local function blocks(a, b) -- of matrices: a block of b for each element of a
      local rows = {}
      for i = 1, a:size(1) do
        local row = {}
        for j = 1, a:size(2) do row[j] = b * a[i][j] end
        rows[i] = tensor.cat(row, 2)
      end
      return tensor.cat(rows, 1)
    end
    for _, sizes in ipairs { { 9, 5, 12, 3 }, { 9, 5, 1, 3 }, { 1, 7, 9, 4 }, { 8, 1, 8, 1 },
      { 16, 2, 8, 300 } } do
      local a, b = tensor.randn(sizes[1], sizes[2]):t():contiguous():t(), tensor.randn(sizes[3], sizes[4])
      assert.is_true(tensor.equal(blocks(a, b), tensor.kron(a, b)), table.concat(sizes, " "))
      local c, d = a:double():requires_grad_(), b:double():requires_grad_()
      local seed = tensor.randn(sizes[1] * sizes[3], sizes[2] * sizes[4]):double()
      local got = { core.grad((tensor.kron(c, d) * seed):sum(), { c, d }) }
      local expected = { core.grad((blocks(c, d) * seed):sum(), { c, d }) }
      for k = 1, 2 do assert.is_true((got[k] - expected[k]):abs():max():item() < 1e-10) end
    end
    assert.same({ 160, 0 }, tensor.kron(tensor.ones(16, 0), tensor.ones(10, 3)).shape)
  end)
end)
