-- save_state and load_state of runs that FSDP cuts over ranks: what is in the folder, and that any
-- number of ranks goes on from it.
local core = require "accelerate.core"
local files = require "accelerate.files"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local intervals = require "accelerate.checkpoint.intervals"
local manifest = require "accelerate.checkpoint.manifest"
local messages = require "spec.support.messages"
local ranks = require "spec.support.ranks"

local has = messages.has

-- arg: state dict type or "none", "save" or "load", folder, optimizer
local SCRIPT = [[
local nn, optim = require "accelerate.nn", require "accelerate.optim"
local kind, action, folder, Optim = arg[1], arg[2], arg[3], optim[arg[4] or "AdamW"]
local plugin = kind ~= "none" and accelerate.FullyShardedDataParallelPlugin {
  fsdp_version = kind == "LOCAL_STATE_DICT" and 1 or 2, state_dict_type = kind } or nil
local accelerator = accelerate.Accelerator { cpu = true, fsdp_plugin = plugin }
accelerate.utils.set_seed(action == "load" and 5 or 1)
local model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3), nn.Linear(3, 7, { bias = false }))
local optimizer = Optim(model:parameters(), { lr = 0.01 })
model, optimizer = accelerator:prepare(model, optimizer)
local x = core.arange(20):to("float32"):view(4, 5):div(10)
local function steps(n)
  for _ = 1, n do
    accelerator:backward(model(x):pow(2):mean())
    optimizer:step()
    optimizer:zero_grad()
  end
end
if action == "save" then
  steps(2)
  accelerator:save_state(folder)
else
  accelerator:load_state(folder)
end
steps(3)
local y = model(x)
accelerator:print(("%.6g %.6g"):format(y:sum():item(), y:pow(2):sum():item()))
]]

local function run(n, kind, action, folder, optimizer)
  return (ranks.ok(n, SCRIPT, { launch = { "--cpu" }, arguments = { kind, action, folder, optimizer } }))
end

local function names_in(folder)
  local list = {}
  for name in pairs(assert(manifest.verify(folder)).files) do list[#list + 1] = name end
  table.sort(list)
  return table.concat(list, " ")
end

describe("a checkpoint of a sharded run", function()
  local FILES = {
    SHARDED_STATE_DICT = "optimizer_0/.metadata optimizer_0/__0_0.distcp optimizer_0/__1_0.distcp " ..
      "pytorch_model_fsdp_0/.metadata pytorch_model_fsdp_0/__0_0.distcp " ..
      "pytorch_model_fsdp_0/__1_0.distcp",
    FULL_STATE_DICT = "optimizer.bin pytorch_model_fsdp.bin",
    LOCAL_STATE_DICT = "optimizer_0/.metadata optimizer_0/__0_0.distcp optimizer_0/__1_0.distcp " ..
      "pytorch_model_fsdp_rank0.bin pytorch_model_fsdp_rank1.bin",
  }
  for kind, expected in pairs(FILES) do
    it("has Accelerate's names, and any number of ranks goes on from it: " .. kind, function()
      host.in_folder(function(folder)
        folder = folder .. "/state"
        local out = run(2, kind, "save", folder)
        assert.equal(expected .. " random_states_0.pkl random_states_1.pkl", names_in(folder))
        for n = 1, 3 do assert.equal(out, run(n, kind, "load", folder)) end
        assert.equal(out, run(2, "none", "load", folder))
      end)
    end)
  end

  it("of one rank is one of several, and a plain one of a sharded run", function()
    host.in_folder(function(folder)
      local out = run(1, "SHARDED_STATE_DICT", "save", folder .. "/one")
      assert.equal(out, run(3, "FULL_STATE_DICT", "load", folder .. "/one"))
      out = run(2, "none", "save", folder .. "/plain")
      assert.equal(out, run(2, "SHARDED_STATE_DICT", "load", folder .. "/plain"))
    end)
  end)

  -- A model with a tied and frozen parameters; arg: strategy, "save" or "load", folder
  local STRATEGIES = [[
local nn, optim = require "accelerate.nn", require "accelerate.optim"
local strategy, action, folder = arg[1], arg[2], arg[3]
local o = { cpu = true }
if strategy == "HYBRID" then
  o.parallelism_config = accelerate.ParallelismConfig { dp_replicate_size = 2, dp_shard_size = 2 }
  o.fsdp_plugin = accelerate.FullyShardedDataParallelPlugin { fsdp_version = 2 }
elseif strategy:match "^ZeRO" then
  o.deepspeed_plugin = accelerate.DeepSpeedPlugin { zero_stage = tonumber(strategy:match "%d") }
elseif strategy ~= "none" then
  o.fsdp_plugin = accelerate.FullyShardedDataParallelPlugin { sharding_strategy = strategy,
    state_dict_type = "SHARDED_STATE_DICT" }
end
local accelerator = accelerate.Accelerator(o)
accelerate.utils.set_seed(action == "load" and 5 or 1)
local Net = nn.class "Net"
function Net:init()
  self.embed, self.inner, self.fixed = nn.Embedding(6, 5), nn.Linear(5, 5), nn.Linear(5, 5)
  self.out = nn.Linear(5, 6, { bias = false })
  self.out.weight = self.embed.weight
  for _, p in ipairs(self.fixed:parameters()) do p.requires_grad = false end
end
function Net:forward(x) return self.out(self.fixed(self.inner(self.embed(x)))) end
local model = Net()
local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
local loader = require("accelerate.data").DataLoader(core.arange(8), { batch_size = 1 })
model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
local x = core.tensor({ 0, 3, 5 }, { dtype = "int64" })
local function steps(n)
  for _ = 1, n do
    accelerator:backward(model(x):pow(2):mean())
    optimizer:step()
    optimizer:zero_grad()
  end
end
if action == "save" then
  steps(2)
  accelerator:save_state(folder)
else
  accelerator:load_state(folder)
end
steps(3)
local y = model(x)
accelerator:print(("%.5g %.5g"):format(y:sum():item(), y:pow(2):sum():item()))
]]

  for strategy, n in pairs { FULL_SHARD = 2, SHARD_GRAD_OP = 3, HYBRID = 4, ["ZeRO-1"] = 2,
    ["ZeRO-3"] = 3 } do
    it("is the same for every strategy, with tied and frozen parameters: " .. strategy, function()
      host.in_folder(function(folder)
        folder = folder .. "/state"
        local function go(ranks_n, how, action)
          return (ranks.ok(ranks_n, STRATEGIES,
            { launch = { "--cpu" }, arguments = { how, action, folder } }))
        end
        local out = go(n, strategy, "save")
        assert.equal(out, go(n, strategy, "load"))
        assert.equal(out, go(1, "none", "load"))
      end)
    end)
  end

  it("keeps the states of other optimizers", function()
    for _, name in ipairs { "SGD", "NAdam", "RMSprop" } do
      host.in_folder(function(folder)
        local out = run(2, "SHARDED_STATE_DICT", "save", folder .. "/state", name)
        assert.equal(out, run(2, "SHARDED_STATE_DICT", "load", folder .. "/state", name))
      end)
    end
  end)

  it("takes the place of another one, and stands in a folder beside other files", function()
    host.in_folder(function(folder)
      local path = folder .. "/state"
      local out = run(2, "SHARDED_STATE_DICT", "save", path)
      run(3, "SHARDED_STATE_DICT", "save", path)
      has(names_in(path), "pytorch_model_fsdp_0/__2_0.distcp")
      assert(fs.write(path .. "/notes.txt", "mine"))
      assert(fs.write(path .. "/optimizer_0/notes.txt", "mine"))
      run(2, "FULL_STATE_DICT", "save", path)
      assert.is_false(fs.exists(path .. "/pytorch_model_fsdp_0"))
      assert.same({ "notes.txt" }, fs.list(path .. "/optimizer_0"))
      assert.equal(out, run(2, "SHARDED_STATE_DICT", "save", path))
      assert.equal("mine", fs.read(path .. "/optimizer_0/notes.txt"))
      assert.equal(out, run(2, "FULL_STATE_DICT", "load", path))
    end)
  end)

  it("has what PyTorch's loader wants: names, scalars, and settings with None", function()
    host.in_folder(function(folder)
      run(2, "SHARDED_STATE_DICT", "save", folder .. "/state")
      local reader = intervals.open(folder .. "/state/optimizer_0")
      assert.same({ {}, 2 }, { reader:shape "optimizer.state.0.weight.step",
        reader:tensor("optimizer.state.0.weight.step"):item() })
      assert.same({ 3, 5 }, reader:shape "optimizer.state.0.weight.exp_avg")
      assert.same({ "0.weight", "0.bias", "1.weight", "1.bias", "2.weight" },
        reader:object "optimizer.param_groups.0.params")
      local found = {}
      for _, name in ipairs(reader:object_names()) do found[name:match "[^.]+$"] = true end
      for _, name in ipairs { "lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach",
        "capturable", "differentiable", "fused", "decoupled_weight_decay" } do
        assert.is_true(found[name], name)
      end
      reader = intervals.open(folder .. "/state/pytorch_model_fsdp_0")
      assert.same({ 2, "int64" }, { reader:tensor("model.1.num_batches_tracked"):item(),
        reader:dtype "model.1.num_batches_tracked" })
      run(2, "FULL_STATE_DICT", "save", folder .. "/full")
      local full = files.load(folder .. "/full/optimizer.bin")
      assert.same({ 3, 5 }, full.state["0.weight"].exp_avg.shape)
      assert.equal("2.weight", full.param_groups[1].params[5])
      assert.is_true(core.is_tensor(files.load(folder .. "/full/pytorch_model_fsdp.bin")["2.weight"]))
    end)
  end)

  it("that does not fit the model is refused by name", function()
    host.in_folder(function(folder)
      run(2, "SHARDED_STATE_DICT", "save", folder .. "/state")
      local function fails(old, new, text)
        local status, _, err = ranks.run(2, (SCRIPT:gsub(old, new)),
          { launch = { "--cpu" }, arguments = { "SHARDED_STATE_DICT", "load", folder .. "/state" } })
        assert.equal(1, status)
        has(err, text)
      end
      fails("nn%.Linear%(3, 7,", "nn.Linear(3, 8,", "'model.2.weight' has shape [7, 3], the model has [8, 3]")
      fails(", { bias = false }", "", "does not fit the model: missing keys: 2.bias")
      fails("nn%.BatchNorm1d%(3%)", "nn.Identity()", "unexpected keys: model.1.bias")
    end)
  end)

  it("that Accelerate saved is loaded by its functions, on any number of ranks", function()
    local script = [[
local nn, optim, utils = require "accelerate.nn", require "accelerate.optim", require "accelerate.utils"
local plugin = accelerate.FullyShardedDataParallelPlugin { fsdp_version = 2 }
local accelerator = accelerate.Accelerator { cpu = true, fsdp_plugin = plugin }
local model = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))
local optimizer = optim.AdamW(model:parameters(), { lr = 0.5 })
model, optimizer = accelerator:prepare(model, optimizer)
utils.load_fsdp_model(plugin, accelerator, model, arg[1])
utils.load_fsdp_optimizer(plugin, accelerator, optimizer, model, arg[1] .. "/optimizer_0")
check(optimizer.param_groups[1].lr == 0.01)
utils.save_fsdp_model(plugin, accelerator, model, arg[2])
utils.save_fsdp_optimizer(plugin, accelerator, optimizer, model, arg[2])
local dict = accelerator:get_state_dict(model)
check(rank == 0 and dict["0.weight"].shape[1] == 3 or rank > 0 and next(dict) == nil)
accelerator:save_model(model, arg[2] .. "/plain")
]]
    local from = "spec/sharded_files/from_torch"
    local expected = core.safetensors_open(from .. "/expected.safetensors")
    for n = 1, 3 do
      host.in_folder(function(folder)
        ranks.ok(n, script, { launch = { "--cpu" }, arguments = { fs.real(from), folder } })
        for _, name in ipairs { "pytorch_model_fsdp_0", "optimizer_0" } do
          local reader = intervals.open(folder .. "/" .. name)
          for _, key in ipairs(reader:names()) do
            assert.same(expected:get_tensor(key):totable(), reader:tensor(key):totable())
          end
        end
        local plain = core.safetensors_open(folder .. "/plain/model.safetensors")
        assert.same(expected:get_tensor("model.0.weight"):totable(), plain:get_tensor("0.weight"):totable())
      end)
    end
  end)

  it("is refused with save_on_each_node", function()
    host.in_folder(function(folder)
      local status, _, err = ranks.run(2, (SCRIPT:gsub("fsdp_plugin = plugin",
        "%0, project_config = accelerate.ProjectConfiguration { save_on_each_node = true }")),
        { launch = { "--cpu" }, arguments = { "SHARDED_STATE_DICT", "save", folder .. "/state" } })
      assert.equal(1, status)
      has(err, "save_on_each_node: a machine has only its ranks' parts of a sharded model")
    end)
  end)

  it("is read over the states that are there, without further memory, where ranks have other parameters",
    function()
      host.in_folder(function(folder)
        ranks.ok(2, [[
          local nn, optim = require "accelerate.nn", require "accelerate.optim"
          local utils = accelerate.utils
          local a = accelerate.Accelerator { cpu = true, fsdp_plugin = { fsdp_version = 2,
            auto_wrap_policy = "NO_WRAP", state_dict_type = "SHARDED_STATE_DICT" } }
          local wide = { bias = false }
          local model = nn.Sequential(nn.Linear(512, 1024, wide), nn.Linear(1024, 512, wide)) -- one for each
          local optimizer
          model, optimizer = a:prepare(model, optim.AdamW(model:parameters(), { lr = 1e-2 }))
          local function step()
            a:backward(model(core.ones(4, 512)):square():mean())
            optimizer:step()
            optimizer:zero_grad()
          end
          local function sum()
            local all = 0
            for _, p in ipairs(model:parameters()) do
              all = all + optimizer.optimizer.state[p].exp_avg:double():abs():sum():item()
            end
            return all
          end
          step()
          local saved = sum()
          a:save_state(arg[1])
          step()
          check(sum() ~= saved)
          collectgarbage() collectgarbage()
          utils.reset_peak_memory_stats()
          local before = utils.memory_stats().live_bytes
          a:load_state(arg[1])
          local more = utils.memory_stats().peak_bytes - before
          check(sum() == saved)
          check(more < 1e6, ("%.1f MB more"):format(more / 1e6))
        ]], { launch = { "--cpu" }, arguments = { folder .. "/state" } })
      end)
    end)
end)
