-- States in checkpoints: what save_state accepts, load_state takes, and what does not fit is named
-- by its file.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local messages = require "spec.support.messages"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local state = require "accelerate.state"
local tensor = require "accelerate.tensor"
local utils = require "accelerate.utils"

local has, raises = messages.has, messages.raises

describe("the states of a checkpoint", function()
  local folder, accelerator, optimizer
  before_each(function()
    state.reset()
    folder = host.free_path()
    accelerator = accelerate.Accelerator { cpu = true }
    local model = nn.Linear(2, 1)
    model, optimizer = accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 1, momentum = 0.9 }))
    accelerator:backward(model(tensor.ones(1, 2)):sum())
    optimizer:step()
  end)
  after_each(function()
    state.reset()
    fs.remove_tree(folder)
  end)

  local function register(value)
    local object = { state_dict = function() return value end }
    function object.load_state_dict(_, found) object.found = { found } end
    accelerator:register_for_checkpointing(object)
    return object
  end

  it("of registered objects are any values but nil", function()
    local shared = { 1, 2 }
    local values = { false, true, 0, -1.5, 1 / 0, -1 / 0, 2 ^ 53, "", "text\0\255", {},
      { a = { b = { 1, "x", false } } },
      tensor.arange(3), { shared, shared }, { [1] = "a", [5] = "b", x = 1 } }
    local objects = {}
    for i, value in ipairs(values) do objects[i] = register(value) end
    accelerator:save_state(folder)
    accelerator:load_state(folder)
    for i, value in ipairs(values) do
      local found = objects[i].found[1]
      if core.is_tensor(value) then value, found = value:totable(), found:totable() end
      assert.same(value, found)
    end
    assert.equal(objects[13].found[1][1], objects[13].found[1][2])
  end)

  it("are not nil, which save_state says with the object", function()
    local Class = require("accelerate.utils.class").open "Averages"
    function Class.init() end
    function Class.state_dict() end
    function Class.load_state_dict() end
    register { 1 }
    accelerator:register_for_checkpointing(Class())
    local why = raises("save_state: state_dict() of registered object 2 (Averages) returned nil; expected",
      accelerator.save_state, accelerator, folder)
    has(why, "expected a table, a tensor, a number, a text or a boolean")
    assert.is_false(fs.exists(folder))
    optimizer.optimizer.state_dict = function() end
    raises("save_state: state_dict() of optimizer 1 (AcceleratedOptimizer) returned nil",
      accelerator.save_state, accelerator, folder)
  end)

  -- Writes another value into a file of the checkpoint, and its sum into the manifest.
  local function replace(name, value)
    utils.save(value, folder .. "/" .. name)
    local path = folder .. "/accelerate_manifest.json"
    local bytes, crc = fs.digest(folder .. "/" .. name)
    local text = assert(fs.read(path)):gsub('("' .. name:gsub("%p", "%%%0") .. '": )%b{}',
      ('%%1{"bytes": %.0f, "crc32c": %.0f}'):format(bytes, crc))
    local lines = text:match '^(.*\n) "crc32c": %d+\n}\n$'
    assert(fs.write(path, ('%s "crc32c": %.0f\n}\n'):format(lines, core._crc32c(lines))))
  end

  it("that are whole and do not fit are named by their files", function()
    local scheduler = optim.lr_scheduler.StepLR(optimizer, { step_size = 2 })
    local data = require "accelerate.data"
    local _, loader = accelerator:prepare(scheduler,
      data.DataLoader(data.TensorDataset(tensor.ones(4, 1)), { batch_size = 2 }))
    assert.is_table(loader)
    local object = register {}
    accelerator:save_state(folder)
    local own = utils.load(folder .. "/random_states_0.pkl")
    local function with(name, value)
      local all = {}
      for key, held in pairs(own) do all[key] = held end
      all[name] = value
      return all
    end
    local function refused(name, value, why)
      local kept = assert(fs.read(folder .. "/" .. name))
      local manifest = assert(fs.read(folder .. "/accelerate_manifest.json"))
      replace(name, value)
      local message = raises(("load_state: %s/%s: "):format(folder, name), accelerator.load_state,
        accelerator,
        folder)
      has(message, why)
      assert(fs.write(folder .. "/" .. name, kept))
      assert(fs.write(folder .. "/accelerate_manifest.json", manifest))
    end
    refused("random_states_0.pkl", with("step", "x"), "'step' must be a number, got 'x'")
    refused("random_states_0.pkl", with("step", 1.5), "step must be an integer, got 1.5")
    refused("random_states_0.pkl", with("windows", 3), "'windows' must be a table, got 3")
    refused("random_states_0.pkl", with("windows", { 3 }), "windows[1] must be a table, got 3")
    refused("random_states_0.pkl", with("buffers", { b = 1 }), "the buffer b must be a tensor, got 1")
    refused("random_states_0.pkl", with("random", "x"), "'random' must be a table, got 'x'")
    refused("random_states_0.pkl", with("random", {}), "state")
    refused("random_states_0.pkl", with("loaders", false), "'loaders' must be a table, got false")
    refused("random_states_0.pkl", "x", "expected a rank's own state, got 'x'")
    refused("optimizer.bin", "x", "state_dict")
    refused("optimizer.bin", { 1 }, "param_groups")
    refused("scheduler.bin", 7, "7")
    refused("sampler.bin", 7, "7")
    refused("model.safetensors", { weight = tensor.ones(9, 9), bias = tensor.ones(1) }, "weight")
    function object.load_state_dict() error "not mine" end
    refused("custom_checkpoint_0.pkl", { 1 }, "not mine")
  end)
end)
