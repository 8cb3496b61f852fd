local class = require "accelerate.utils.class"
local core = require "accelerate.core"
local hooks = require "accelerate.hooks"
local nn = require "accelerate.nn"
local offload = require "accelerate.utils.offload"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

local function filled(module)
  core.no_grad(function()
    for _, p in ipairs(module:parameters()) do
      p:copy_(tensor.arange(p:numel()):reshape(p.shape):float():div(7))
    end
  end)
  return module
end

local AddOne = class("AddOne", hooks.ModelHook)
function AddOne:pre_forward(_, x) return x + 1 end

local Double = class("Double", hooks.ModelHook)
function Double:post_forward(_, y) return y * 2 end

local X = tensor { { 1, 2, 3 } }

describe("a hook around a module", function()
  local layer, plain
  before_each(function()
    layer = filled(nn.Linear(3, 2))
    plain = function(x) return layer._old_forward(layer, x) end
  end)

  it("changes arguments before and results after forward", function()
    local expected = (layer(X + 1)):tolist()
    hooks.add_hook_to_module(layer, AddOne())
    assert.same(expected, layer(X):tolist())
    hooks.add_hook_to_module(layer, Double())
    assert.same((plain(X) * 2):tolist(), layer(X):tolist())
  end)

  it("takes the place of another one, or follows it with append", function()
    hooks.add_hook_to_module(layer, AddOne())
    hooks.add_hook_to_module(layer, Double(), { append = true })
    assert.is_true(class.is(layer._hf_hook, hooks.SequentialHook))
    assert.equal(2, #layer._hf_hook.hooks)
    assert.same((plain(X + 1) * 2):tolist(), layer(X):tolist())
    hooks.add_hook_to_module(layer, AddOne())
    assert.same(plain(X + 1):tolist(), layer(X):tolist())
  end)

  it("is told when it is put on and taken off", function()
    local events, Told = {}, class("Told", hooks.ModelHook)
    function Told:init_hook(module) events[#events + 1] = "on" return module end
    function Told:detach_hook(module) events[#events + 1] = "off" return module end
    hooks.add_hook_to_module(layer, hooks.SequentialHook(Told(), Told()))
    hooks.remove_hook_from_module(layer)
    assert.same({ "on", "on", "off", "off" }, events)
  end)

  it("leaves the module as it was when it is taken off, with all below it where asked", function()
    local model = nn.Sequential(layer, nn.ReLU())
    local forward = layer.forward
    hooks.add_hook_to_module(model, AddOne())
    hooks.add_hook_to_module(layer, Double())
    hooks.remove_hook_from_module(model)
    assert.is_nil(model._values._hf_hook)
    assert.is_not_nil(layer._values._hf_hook)
    hooks.remove_hook_from_submodules(model)
    assert.is_nil(layer._values._hf_hook)
    assert.equal(forward, layer.forward)
    assert.is_nil(layer._values.forward)
  end)

  it("keeps a forward that the module had of its own", function()
    layer.forward = function(_, x) return x * 10 end
    hooks.add_hook_to_module(layer, AddOne())
    assert.same({ { 20, 30, 40 } }, layer(X):tolist())
    hooks.remove_hook_from_module(layer)
    assert.same({ { 10, 20, 30 } }, layer(X):tolist())
  end)

  it("runs forward without gradients when it says so", function()
    local Quiet = class("Quiet", hooks.ModelHook)
    Quiet.no_grad = true
    assert.is_true(layer(X).requires_grad)
    hooks.add_hook_to_module(layer, Quiet())
    assert.is_false(layer(X).requires_grad)
  end)

  it("is refused when it is no hook", function()
    assert.error_matches(function() hooks.add_hook_to_module(layer, {}) end,
      "hook must be a ModelHook, got a table")
  end)
end)

describe("AlignDevicesHook", function()
  local model, expected
  before_each(function()
    model = filled(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))):eval()
    expected = model(X):tolist()
  end)

  local function devices()
    local list = {}
    for name, t in utils.named_module_tensors(model, { recurse = true }) do list[name] = t.device end
    return list
  end

  it("leaves weights without elements between calls", function()
    hooks.attach_align_device_hook(model, { execution_device = "cpu", offload = true })
    assert.equal("meta", model[1].weight.device)
    assert.equal("cpu", model[2].running_mean.device)
    assert.same(expected, model(X):tolist())
    assert.equal("meta", model[1].weight.device)
    hooks.remove_hook_from_submodules(model)
    assert.equal("cpu", devices()["0.weight"])
    assert.same(expected, model(X):tolist())
  end)

  it("offloads saved buffers where asked", function()
    hooks.attach_align_device_hook(model,
      { execution_device = "cpu", offload = true, offload_buffers = true })
    assert.equal("meta", model[2].running_mean.device)
    assert.same(expected, model(X):tolist())
  end)

  it("takes weights from a map by their names in the model", function()
    local map = model:state_dict()
    local copies = {}
    for name, t in pairs(map) do copies[name] = t * 2 end
    local doubled = filled(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))):eval()
    doubled:load_state_dict(copies)
    doubled[2]:load_state_dict(model[2]:state_dict())
    local buffers = offload.extract_submodules_state_dict(map, { "1" })
    for name, t in pairs(buffers) do copies[name] = t end
    hooks.attach_align_device_hook(model, { execution_device = "cpu", offload = true, weights_map = copies })
    assert.same(doubled(X):tolist(), model(X):tolist())
  end)

  it("loads a tied weight once, and keeps it for the module around", function()
    local Tied = nn.class "Tied"
    function Tied:init()
      self.weight = nn.Parameter(tensor.ones(2, 2))
      self.inner = nn.Linear(2, 2, { bias = false })
      self.inner.weight = self.weight
    end
    function Tied:forward(x) return self.inner(x):matmul(self.weight) end
    local tied = Tied()
    local y = tied(tensor { { 1, 2 } }):tolist()
    hooks.attach_align_device_hook(tied, { execution_device = "cpu", offload = true })
    assert.same(y, tied(tensor { { 1, 2 } }):tolist())
  end)

  it("loads modules below a class at once where asked", function()
    hooks.attach_align_device_hook(model, { execution_device = "cpu", offload = true,
      preload_module_classes = { "Sequential" } })
    assert.is_nil(model[1]._values._hf_hook)
    assert.equal("meta", model[1].weight.device)
    assert.same(expected, model(X):tolist())
  end)

  it("goes around the blocks that maps name", function()
    hooks.attach_align_device_hook_on_blocks(model,
      { execution_device = { [""] = "cpu", ["0"] = "cpu", ["1"] = "cpu",
      ["2"] = "cpu" }, offload = { ["0"] = true, ["1"] = false, ["2"] = false } })
    assert.equal("meta", model[1].weight.device)
    assert.equal("cpu", model[3].weight.device)
    assert.is_true(model._hf_hook.io_same_device)
    assert.same(expected, model(X):tolist())
  end)

  it("says which weight a map lacks", function()
    hooks.attach_align_device_hook(model,
      { execution_device = "cpu", offload = true, weights_map = { x = X } })
    assert.error_matches(function() model(X) end, "Linear: weights_map has no weight 'weight'")
  end)

  it("gives offloaded weights for a moment, and in a state dict", function()
    local before = model[1].weight:tolist()
    hooks.attach_align_device_hook(model, { execution_device = "cpu", offload = true })
    assert.is_true(utils.has_offloaded_params(model[1]))
    utils.align_module_device(model[1], "cpu", function() assert.same(before, model[1].weight:tolist()) end)
    assert.equal("meta", model[1].weight.device)
    local dict = utils.get_state_dict_offloaded_model(model)
    assert.same(before, dict["0.weight"]:tolist())
    assert.is_not_nil(dict["1.running_mean"])
    local part = utils.get_state_dict_from_offload(model[1], "0.weight", { ["0.weight"] = false })
    assert.same({ "0.weight" }, require("accelerate.utils.ordered").keys(part))
  end)
end)

describe("set_module_tensor_to_device", function()
  it("keeps the object, and gives it a value, a type or no elements", function()
    local layer = nn.Linear(2, 2)
    local weight = layer.weight
    utils.set_module_tensor_to_device(layer, "weight", "cpu", { value = tensor { { 1, 2 }, { 3, 4 } } })
    assert.is_true(rawequal(weight, layer.weight))
    assert.same({ { 1, 2 }, { 3, 4 } }, weight:tolist())
    utils.set_module_tensor_to_device(layer, "weight", "cpu", { dtype = "bfloat16" })
    assert.equal("bfloat16", weight.dtype)
    utils.set_module_tensor_to_device(layer, "weight", "meta")
    assert.equal("meta", weight.device)
    assert.error_matches(function() utils.set_module_tensor_to_device(layer, "weight", "cpu") end,
      "'weight' is on the device \"meta\", without elements; give the option 'value'")
  end)

  it("refuses another shape and names that are not there", function()
    local model = nn.Sequential(nn.Linear(2, 2))
    assert.error_matches(function()
      utils.set_module_tensor_to_device(model, "0.weight", "cpu", { value = tensor.ones(3) })
    end, "'0.weight' has the shape %[2, 2%], the value has %[3%]")
    assert.error_matches(function() utils.set_module_tensor_to_device(model, "0.weights", "cpu") end,
      "Linear has no parameter or buffer named 'weights'")
  end)
end)

describe("LayerwiseCastingHook", function()
  it("keeps linear layers in the small type between calls, but the skipped ones", function()
    local model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    hooks.attach_layerwise_casting_hooks(model, "bfloat16", "float32", { skip_modules_pattern = "^2$" })
    assert.equal("bfloat16", model[1].weight.dtype)
    assert.equal("float32", model[2].weight.dtype)
    assert.equal("float32", model[3].weight.dtype)
    assert.equal("float32", model(X).dtype)
    assert.equal("bfloat16", model[1].weight.dtype)
  end)
end)

describe("CpuOffload", function()
  it("brings the previous model back before its own comes", function()
    local first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    local hook = hooks.CpuOffload { execution_device = "cpu" }
    hooks.add_hook_to_module(first, hook)
    local user = hooks.UserCpuOffloadHook(first, hook)
    hooks.add_hook_to_module(second, hooks.CpuOffload { execution_device = "cpu", prev_module_hook = user })
    assert.equal("cpu", second(first(X)).device)
    user:remove()
    assert.is_nil(first._values._hf_hook)
    assert.error_matches(function() hooks.CpuOffload { prev_module_hook = 5 } end,
      "prev_module_hook must be what cpu_offload_with_hook returned")
  end)
end)
