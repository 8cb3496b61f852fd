-- What a plan asks of a model's forward and of reductions: lua/accelerate/accelerator/policy.lua.
local accelerate = require "accelerate"
local env = require "accelerate.utils.environment"
local messages = require "spec.support.messages"
local nn = require "accelerate.nn"
local notice = require "accelerate.messages.notice"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local tensor = require "accelerate.tensor"

-- A block that counts its forward passes.
local function block()
  local Block = nn.class "Block"
  function Block:init()
    self.fc, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
    self.passes = 0
  end
  function Block:forward(x)
    self.passes = self.passes + 1
    return self.drop(self.fc(x)):relu()
  end
  return Block()
end

local WRAP = { auto_wrap_policy = "TRANSFORMER_BASED_WRAP", transformer_cls_names_to_wrap = { "Block" } }

local function prepared(model, options)
  local given = {}
  for _, map in ipairs { WRAP, options } do
    for key, value in pairs(map) do given[key] = value end
  end
  local a = accelerate.Accelerator { fsdp_plugin = given }
  return a:prepare_model(model), a
end

describe("a plan in one process", function()
  before_each(notice.reset)
  after_each(function()
    state.reset()
    env.set("ACCELERATE_USE_FSDP", nil)
  end)

  it("computes the units' activations again in backward, with equal gradients", function()
    local function gradients(options)
      tensor.manual_seed(7)
      local net = nn.Sequential(block(), block())
      local model, a = prepared(net, options)
      a:backward(model(tensor.ones(2, 4, { requires_grad = true })):sum())
      local passes, weight = net[1].passes, net[1].fc.weight.grad:totable()
      state.reset()
      return weight, passes
    end
    local plain, once = gradients {}
    local again, twice = gradients { activation_checkpointing = true }
    assert.are.same({ 1, 2 }, { once, twice })
    assert.are.same(plain, again)
  end)

  it("computes nothing again without a gradient, or twice for a second prepare", function()
    local net = nn.Sequential(block())
    local model, a = prepared(net, { activation_checkpointing = true })
    a:prepare_model(model)
    tensor.no_grad(function() model(tensor.ones(2, 4)) end)
    assert.are.equal(1, net[1].passes)
    a:backward(model(tensor.ones(2, 4)):sum())
    assert.are.equal(3, net[1].passes)
  end)

  it("says that there are no units to compute again", function()
    local text = messages.said(function()
      accelerate.Accelerator { fsdp_plugin = { activation_checkpointing = true } }:prepare_model(nn.Linear(2,
        2))
    end)
    messages.has(text, "FULL_SHARD: activation_checkpointing has no effect: no module of Linear is a unit")
  end)

  it("computes in the policy's type, and gives outputs in another", function()
    local function types(policy, version)
      local net = nn.Sequential(nn.Linear(4, 4))
      net[1]:register_forward_hook(function(_, _, y) policy.seen = y.dtype end)
      local model = prepared(net, { fsdp_version = version or 2, auto_wrap_policy = "NO_WRAP",
        mixed_precision_policy = policy.name or policy })
      local y = model(tensor.ones(2, 4))
      state.reset()
      return policy.seen, y.dtype
    end
    assert.are.same({ "bfloat16", "bfloat16" }, { types { name = "bf16" } })
    assert.are.same({ "bfloat16", "bfloat16" }, { types({ name = "bf16" }, 1) })
    assert.are.same({ "float32", "float32" }, { types { name = "fp32" } })
  end)

  it("gives outputs in their own type", function()
    local model = prepared(nn.Linear(4, 4), { fsdp_version = 2, auto_wrap_policy = "NO_WRAP",
      mixed_precision_policy = { param_dtype = "bfloat16", reduce_dtype = "float32",
      output_dtype = "float32" } })
    assert.are.equal("float32", model(tensor.ones(2, 4)).dtype)
  end)

  -- The types of what a model and its block get, of a buffer, and of running statistics.
  local function types_under(options)
    local Block = nn.class "Block"
    function Block:init()
      self.fc, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
      self:register_buffer("table", tensor.ones(4))
    end
    function Block:forward(x)
      self.got = x.dtype
      return self.norm(self.fc(x)):float()
    end
    local Net = nn.class "Net"
    function Net:init() self.block, self.last = Block(), nn.Linear(4, 2) end
    function Net:forward(x, more)
      self.got, self.listed, self.other = x.dtype, more.list[1].dtype, more.ids.dtype
      local y = self.block(x:float())
      self.given = y.dtype
      return self.last(y)
    end
    local net = prepared(Net(), options)
    net(tensor.ones(2, 4), { list = { tensor.ones(1) }, ids = tensor.ones(1, { dtype = "int64" }) })
    state.reset()
    assert.are.same({ "int64", "float32" }, { net.other, net.block.norm.running_mean.dtype })
    return { net.got, net.listed, net.block.got, net.given, net.block.table.dtype }
  end

  it("casts floating inputs, outputs and buffers as the policies of FSDP1 and FSDP2 do", function()
    local low, wide = "bfloat16", "float32"
    local one = { param_dtype = low, reduce_dtype = wide, buffer_dtype = wide }
    local two = { param_dtype = low, reduce_dtype = wide, output_dtype = low }
    local function under(version, policy, key, value)
      local given = {}
      for name, dtype in pairs(policy) do given[name] = dtype end
      if key then given[key] = value end
      return types_under { fsdp_version = version, mixed_precision_policy = given }
    end
    assert.are.same({ low, low, wide, wide, wide }, under(1, one))
    assert.are.same({ low, low, wide, wide, low }, under(1, one, "buffer_dtype", low))
    assert.are.same({ low, low, low, wide, wide }, under(1, one, "cast_forward_inputs", true))
    assert.are.same({ wide, wide, wide, wide, wide }, under(1, one, "cast_root_forward_inputs", false))
    assert.are.same({ low, low, low, low, wide }, under(2, two))
    assert.are.same({ wide, wide, wide, wide, wide }, under(2,
      { param_dtype = low, reduce_dtype = wide, output_dtype = wide }, "cast_forward_inputs", false))
  end)

  it("leaves inputs and buffers alone where it follows the mixed precision", function()
    local function types()
      local a = accelerate.Accelerator { mixed_precision = "bf16", fsdp_plugin = WRAP }
      local net = block()
      net:register_buffer("table", tensor.ones(4))
      net:register_forward_pre_hook(function(_, args) net.got = args[1].dtype end)
      local model = a:prepare_model(net)
      local y = model(tensor.ones(2, 4))
      return { net.got, net.table.dtype, y.dtype, a._plan.param_dtype, a._plan.reduce_dtype }
    end
    assert.are.same({ "float32", "float32", "float32", "bfloat16", "bfloat16" }, types())
  end)

  it("refuses a lower type for whole gradients, and keys that a policy does not have", function()
    messages.raises("NO_SHARD: reduce_dtype = bfloat16: whole gradients are reduced in a lower type by " ..
      "a hook; " ..
      "give the Accelerator DistributedDataParallelKwargs { comm_hook = 'bf16' }", accelerate.Accelerator,
      { fsdp_plugin = { reshard_after_forward = "NO_SHARD", mixed_precision_policy = "bf16" } })
    state.reset()
    messages.raises("cast_root_forward_inputs", accelerate.Accelerator, { fsdp_plugin = { fsdp_version = 2,
      mixed_precision_policy = { param_dtype = "float32", reduce_dtype = "float32", output_dtype = "float32",
      cast_root_forward_inputs = true } } })
  end)
end)

describe("a plan on two ranks", function()
  it("rounds gradients to the type that they are reduced in", function()
    -- both ranks' gradients are 1 in bfloat16; their mean is not
    ranks.ok(2, [[
      local nn, optim = require "accelerate.nn", require "accelerate.optim"
      local tensor = require "accelerate.tensor"
      local function step(policy)
        local a = accelerate.Accelerator {
          fsdp_plugin = { fsdp_version = 2, mixed_precision_policy = policy } }
        local model = nn.Linear(1, 1, { bias = false })
        tensor.no_grad(function() model.weight:fill_(2) end)
        local optimizer
        model, optimizer = a:prepare(model, optim.SGD(model:parameters(), { lr = 1 }))
        a:backward(model(tensor.full({ 1, 1 }, 1 + 0.001 * rank)):sum())
        optimizer:step()
        local y = model(tensor.ones(1, 1)):item()
        require("accelerate.state").reset()
        return y
      end
      local wide = { param_dtype = "float32", reduce_dtype = "float32", output_dtype = "float32" }
      local low = { param_dtype = "float32", reduce_dtype = "bfloat16", output_dtype = "float32" }
      check(math.abs(step(wide) - 0.9995) < 1e-6)
      check(step(low) == 1)
    ]])
  end)

  it("computes activations again where values are cut, with equal losses", function()
    local out = ranks.ok(2, [[
      local models, tensor = require "accelerate.models", require "accelerate.tensor"
      local function losses(again)
        tensor.manual_seed(3)
        local a = accelerate.Accelerator { fsdp_plugin = { fsdp_version = 2, activation_checkpointing = again,
          auto_wrap_policy = "TRANSFORMER_BASED_WRAP" } }
        local model = models.GPT2LMHeadModel {
          vocab_size = 40, n_positions = 8, n_embd = 16, n_layer = 2, n_head = 2 }
        local optimizer = require("accelerate.optim").AdamW(model:parameters(), { lr = 1e-2 })
        model, optimizer = a:prepare(model, optimizer)
        local ids, list = tensor.randint(0, 40, { 2, 8 }), {}
        for i = 1, 4 do
          local loss = model(ids, { labels = ids }).loss
          a:backward(loss)
          optimizer:step()
          optimizer:zero_grad()
          list[i] = loss:item()
        end
        require("accelerate.state").reset()
        return table.concat(list, " ")
      end
      local plain, again = losses(false), losses(true)
      check(plain == again)
    ]])
    assert.is_truthy(out)
  end)
end)
