--- The switches of how GPUs compute, under PyTorch's names (lua/accelerate/tensor/numerics.lua).
--- What follows them is in spec/gpu.
local host = require "spec.support.host"
local tensor = require "accelerate.tensor"

describe("use_deterministic_algorithms", function()
  after_each(function() tensor.use_deterministic_algorithms(true) end)

  it("is on at first, and is what it was set to", function()
    local status, out = host.run { "-e",
      'local t = require "accelerate.tensor"; print(t.are_deterministic_algorithms_enabled())' }
    assert.are.equal(0, status)
    assert.are.equal("true\n", out)
    tensor.use_deterministic_algorithms(false)
    assert.is_false(tensor.are_deterministic_algorithms_enabled())
    assert.is_false(tensor.backends.cudnn.deterministic)
    tensor.backends.cudnn.deterministic = true
    assert.is_true(tensor.are_deterministic_algorithms_enabled())
  end)

  it("keeps warn_only for who looks at it", function()
    assert.is_false(tensor.is_deterministic_algorithms_warn_only_enabled())
    tensor.use_deterministic_algorithms(true, { warn_only = true })
    assert.is_true(tensor.is_deterministic_algorithms_warn_only_enabled())
    tensor.use_deterministic_algorithms(false, { warn_only = true })
    assert.is_false(tensor.is_deterministic_algorithms_warn_only_enabled())
  end)

  it("refuses what is no boolean, and unknown options", function()
    assert.has_error(function() tensor.use_deterministic_algorithms(1) end)
    assert.has_error(function() tensor.use_deterministic_algorithms(true, { warnonly = true }) end)
    assert.is_true(tensor.are_deterministic_algorithms_enabled())
  end)
end)

describe("backends", function()
  it("have TF32 for convolutions follow the products until it is set", function()
    local status, out, err = host.run { "-e", [[
      local t = require "accelerate.tensor"
      local cudnn, matmul = t.backends.cudnn, t.backends.cuda.matmul
      local function show() print(cudnn.allow_tf32, matmul.allow_tf32, t.get_float32_matmul_precision()) end
      show()
      matmul.allow_tf32 = true
      show()
      cudnn.allow_tf32 = false
      show()
      matmul.allow_tf32, cudnn.allow_tf32 = false, true
      show()
    ]] }
    assert.are.equal(0, status, err)
    assert.are.equal("false\tfalse\thighest\ntrue\ttrue\thigh\nfalse\ttrue\thigh\ntrue\tfalse\thighest\n",
      out)
  end)

  it("refuse what is no boolean, and other names", function()
    assert.has_error(function() tensor.backends.cudnn.allow_tf32 = "yes" end)
    assert.has_error(function() tensor.backends.cuda.matmul.allow_tf32 = 1 end)
    assert.has_error(function() tensor.backends.cudnn.allow_tf23 = true end)
    assert.has_error(function() return tensor.backends.cudnn.benchmarks end)
    assert.has_error(function() tensor.backends.cudnn.benchmark = 1 end)
  end)

  it("take cudnn.benchmark, which changes nothing, and say so once", function()
    local status, out, err = host.run { "-e", [[
      local cudnn = require("accelerate.tensor").backends.cudnn
      local first = cudnn.benchmark
      cudnn.benchmark = false
      cudnn.benchmark = true
      cudnn.benchmark = true
      print(first, cudnn.benchmark)
    ]] }
    assert.are.equal(0, status, err)
    assert.are.equal("false\ttrue\n", out)
    assert.are.equal(1, select(2, err:gsub("backends.cudnn.benchmark changes nothing", "")))
  end)
end)
