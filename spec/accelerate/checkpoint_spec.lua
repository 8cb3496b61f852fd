-- save_state and load_state: a checkpoint is there whole or not at all.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local data = require "accelerate.data"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local tensor = require "accelerate.tensor"
local messages = require "spec.support.messages"

local has, matches = messages.has, messages.matches

-- What is written to stderr while fn() runs.
local function stderr_of(fn)
  local former, texts = io.stderr, {}
  -- luacheck: ignore 122
  io.stderr = { write = function(_, ...) texts[#texts + 1] = table.concat { ... } end }
  local ok, why = pcall(fn)
  io.stderr = former -- luacheck: ignore 122
  assert(ok, why)
  return table.concat(texts)
end

describe("a checkpoint", function()
  local folder
  before_each(function()
    state.reset()
    folder = os.tmpname()
    os.remove(folder)
  end)
  after_each(function()
    state.reset()
    fs.remove_tree(folder)
  end)

  local function world(project)
    tensor.manual_seed(1)
    local accelerator = accelerate.Accelerator { cpu = true,
      project_config = accelerate.ProjectConfiguration(project or
        { project_dir = folder, automatic_checkpoint_naming = true }) }
    local model = nn.Linear(4, 2)
    local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
    model, optimizer = accelerator:prepare(model, optimizer)
    local w = { accelerator = accelerator, model = model, optimizer = optimizer }
    function w.step()
      accelerator:backward(model(tensor.ones(3, 4)):square():sum())
      optimizer:step()
      optimizer:zero_grad()
    end
    function w.bits() return model.weight:totable() end
    return w
  end

  local function damage(name, change)
    local path = ("%s/checkpoints/checkpoint_1/%s"):format(folder, name)
    local text = assert(fs.read(path))
    assert(fs.write(path, change(text)))
  end

  -- A manifest whose checksum is right for what it says now.
  local function sign(text)
    local lines = text:match '^(.*\n) "crc32c": %d+\n}\n$'
    return ('%s "crc32c": %.0f\n}\n'):format(lines, core._crc32c(lines))
  end

  it("has Accelerate's names, and a manifest with sizes and checksums", function()
    local w = world()
    w.step()
    w.accelerator:register_for_checkpointing({ state_dict = function() return { a = 1 } end,
      load_state_dict = function() end })
    local path = w.accelerator:save_state()
    assert.equal(folder .. "/checkpoints/checkpoint_0", path)
    assert.equal(1, w.accelerator.save_iteration)
    assert.same({ "accelerate_manifest.json", "custom_checkpoint_0.pkl", "model.safetensors", "optimizer.bin",
      "random_states_0.pkl" }, fs.list(path))
    local manifest = require("accelerate.utils.json").decode(
      assert(fs.read(path .. "/accelerate_manifest.json")))
    assert.equal(#assert(fs.read(path .. "/optimizer.bin")), manifest.files["optimizer.bin"].bytes)
    assert.equal(1, manifest.saved_by.num_processes)
  end)

  it("has the checksum of RFC 3720", function()
    assert(fs.make_dirs(folder))
    assert(fs.write(folder .. "/nine", "123456789"))
    assert.same({ 9, 0xe3069283 }, { fs.digest(folder .. "/nine") })
    assert(fs.write(folder .. "/zeros", ("\0"):rep(32)))
    assert.same({ 32, 0x8a9136aa }, { fs.digest(folder .. "/zeros") })
    local size, why = fs.digest(folder)
    assert.is_nil(size)
    has(why, "no regular file")
  end)

  it("has a checksum that does not depend on threads, at every length of a run", function()
    assert(fs.make_dirs(folder))
    local text = {}
    for i = 1, 2 ^ 16 do text[i] = ("%05d,"):format(i * 7919 % 99991) end
    text = table.concat(text):rep(33) -- 12976128 bytes: four threads
    -- By another program: the checksum of the definition, bit by bit.
    for _, case in ipairs { { 3071, 0x8bb70c55 }, { 3072, 0x5bdc6b9c }, { 3073, 0x9b8f12a4 },
      { 49151, 0xc8262684 }, { 98311, 0x8f819d46 }, { 393215, 0x35bf92ab }, { 393216, 0x0474b350 },
      { 393217, 0x33bfb480 }, { 399361, 0x1aef2d48 }, { #text, 0x7ee2fbba } } do
      assert(fs.write(folder .. "/text", text:sub(1, case[1])))
      for threads = 1, 4 do
        assert.same(case, { fs.digest(folder .. "/text", threads) })
      end
    end
    assert(fs.write(folder .. "/empty", ""))
    assert.same({ 0, 0 }, { fs.digest(folder .. "/empty", 4) })
  end)

  it("keeps a file mapped from its check to its reading, and no longer", function()
    local path = folder .. "/kept"
    local function mapped()
      local n = 0
      for line in io.lines "/proc/self/maps" do n = n + (line:find(path, 1, true) and 1 or 0) end
      return n
    end
    assert(fs.make_dirs(folder))
    data.write_npy(path, tensor.arange(1, 4))
    fs.digest(path)
    assert.equal(0, mapped())
    fs.digest(path, 1, true)
    assert.equal(1, mapped())
    assert.same({ 1, 2, 3 }, data.read_npy(path):tolist()) -- copies its values, and unmaps the file
    assert.equal(0, mapped())
    fs.digest(path, 1, true)
    data.write_npy(path, tensor.arange(5, 9)) -- another file of that name: the kept one is not it
    assert.same({ 5, 6, 7, 8 }, data.read_npy(path):tolist())
    assert.equal(1, mapped())
    fs.forget_kept()
    assert.equal(0, mapped())
  end)

  it("leaves no file mapped behind load_state, whole or damaged", function()
    local w = world()
    w.step()
    local path = w.accelerator:save_state()
    -- In a coroutine, so that no dead slot of this function's stack holds what was read.
    local function load() coroutine.wrap(w.accelerator.load_state)(w.accelerator, path) end
    local function mapped()
      jit.flush() -- a trace may refer to a tensor whose memory is a mapped file
      collectgarbage()
      collectgarbage()
      local n = 0
      for line in io.lines "/proc/self/maps" do n = n + (line:find(path, 1, true) and 1 or 0) end
      return n
    end
    load()
    assert.equal(0, mapped())
    local name = path .. "/optimizer.bin"
    local bytes = assert(fs.read(name))
    assert(fs.write(name, bytes:sub(1, -2) .. string.char((bytes:byte(-1) + 1) % 256)))
    matches(select(2, pcall(w.accelerator.load_state, w.accelerator, path)), "optimizer.bin is damaged")
    assert(fs.write(name, bytes))
    load()
    assert.equal(0, mapped())
  end)

  it("brings back optimizers and generators", function()
    local w = world()
    w.step()
    w.accelerator:save_state()
    w.step()
    local expected, drawn, also = w.bits(), tensor.rand(3):totable(), math.random()
    w.step()
    assert.equal(folder .. "/checkpoints/checkpoint_0", w.accelerator:load_state())
    w.step()
    assert.same(expected, w.bits())
    assert.same(drawn, tensor.rand(3):totable())
    assert.equal(also, math.random())
  end)

  it("is read by all cores, and the run has its own number of threads again, also when that fails", function()
    local w = world()
    w.step()
    w.accelerator:save_state()
    local former, seen = core.get_num_threads(), nil
    core.set_num_threads(1)
    local function threads_after(load)
      w.optimizer.optimizer.load_state_dict = load
      local ok, why = pcall(w.accelerator.load_state, w.accelerator)
      return core.get_num_threads(), ok, why
    end
    local n, ok = threads_after(function() seen = core.get_num_threads() end)
    local m, _, why = threads_after(function() error "no such state" end)
    core.set_num_threads(former)
    assert.equal(core._cores(), seen)
    assert.same({ 1, true, 1 }, { n, ok, m })
    matches(why, "no such state")
  end)

  it("is read into the memory that the optimizers' states have, and into new memory where it cannot",
    function()
    host.in_folder(function(root)
      local accelerator = accelerate.Accelerator { cpu = true }
      local model = nn.Linear(300, 200)
      local optimizer = optim.AdamW(model:parameters(), { lr = 0.1 })
      model, optimizer = accelerator:prepare(model, optimizer)
      local function step()
        accelerator:backward(model(tensor.randn(4, 300)):square():mean())
        optimizer:step()
        optimizer:zero_grad()
      end
      local function first_state() return optimizer.state[model:parameters()[1]] end
      step()
      accelerator:save_state(root .. "/one")
      local saved, place = first_state().exp_avg:clone(), first_state().exp_avg:data_ptr()
      step()
      assert.is_false(tensor.equal(saved, first_state().exp_avg))
      accelerator:load_state(root .. "/one")
      assert.equal(place, first_state().exp_avg:data_ptr())
      assert.is_true(tensor.equal(saved, first_state().exp_avg))
      assert.equal(1, first_state().step)
      -- a dict of the optimizer's own tensors must not be read while it is written over
      local dict = optimizer:state_dict()
      dict.state[0].exp_avg, dict.state[0].exp_avg_sq = dict.state[0].exp_avg_sq, dict.state[0].exp_avg
      local squares = dict.state[0].exp_avg:clone()
      optimizer:load_state_dict(dict)
      assert.is_true(tensor.equal(squares, first_state().exp_avg))
      assert.is_true(tensor.equal(saved, first_state().exp_avg_sq))
      -- a parameter that has stepped since, and had not when it was saved
      local extra = nn.Parameter(tensor.ones(3))
      optimizer:add_param_group { params = { extra } }
      accelerator:save_state(root .. "/two")
      extra:sum():backward()
      step()
      assert.is_table(optimizer.state[extra])
      accelerator:load_state(root .. "/two")
      assert.is_nil(optimizer.state[extra])
    end)
  end)

  it("that is damaged is passed over, and the reason is said", function()
    local cases = {
      { "model.safetensors",
        function(text) return text:sub(1, -2) .. string.char((text:byte(-1) + 1) % 256) end,
        "model.safetensors is damaged" },
      { "optimizer.bin", function(text) return text:sub(1, -5) end, "optimizer.bin has %d+ bytes, and had" },
      { "accelerate_manifest.json", function(text) return text:sub(1, 50) end,
        "accelerate_manifest.json is damaged" },
      { "accelerate_manifest.json", function(text) return (text:gsub("crc32c", "crc32b", 1)) end,
        "accelerate_manifest.json is damaged" },
      { "accelerate_manifest.json", function(text) return (text:gsub("optimizer%.bin", "optimizer.bil")) end,
        "accelerate_manifest.json is damaged: its bytes are not those that were saved" },
      { "accelerate_manifest.json",
        function(text) return (text:gsub('num_threads": %d', 'num_threads": 9')) end,
        "accelerate_manifest.json is damaged: its bytes are not those that were saved" },
      { "accelerate_manifest.json", function(text) return (text:gsub("optimizer%.bin", "optimizer.bil")) end,
        "accelerate_manifest.json lists optimizer.bil: cannot read", signed = true },
      { "accelerate_manifest.json", function(text) return (text:gsub('"bytes": ?', '%02', 1)) end,
        "and had 2%d+ when it was saved, says accelerate_manifest.json", signed = true },
    }
    for _, case in ipairs(cases) do
      local w = world()
      w.accelerator:save_state()
      local first = w.bits()
      w.step()
      w.accelerator:save_state()
      damage(case[1], case.signed and function(text) return sign(case[2](text)) end or case[2])
      assert.error_matches(function() w.accelerator:load_state(folder .. "/checkpoints/checkpoint_1") end,
        case[3])
      local path, lines
      lines = stderr_of(function() path = w.accelerator:load_state() end)
      assert.equal(folder .. "/checkpoints/checkpoint_0", path)
      matches(lines, "passed over [^\n]*checkpoint_1: [^\n]*" .. case[3])
      assert.same(first, w.bits())
      fs.remove_tree(folder)
      state.reset()
    end
  end)

  it("that is damaged gives its place to the run that passed it over", function()
    local w = world()
    w.accelerator:save_state()
    w.accelerator:save_state()
    damage("optimizer.bin", function(text) return text:sub(1, -5) end)
    w.accelerator.project_configuration.iteration = 1
    assert.error_matches(function() w.accelerator:save_state() end, "checkpoint_1 is there already")
    stderr_of(function() w.accelerator:load_state() end)
    w.step()
    local expected = w.bits()
    assert.equal(folder .. "/checkpoints/checkpoint_1", w.accelerator:save_state())
    w.step()
    assert.equal(folder .. "/checkpoints/checkpoint_1", w.accelerator:load_state())
    assert.same(expected, w.bits())
  end)

  it("may be saved when an older one cannot be removed, and what a killed save left goes", function()
    local w = world { project_dir = folder, automatic_checkpoint_naming = true, total_limit = 1 }
    w.accelerator:save_state()
    local plan = require("accelerate.checkpoint.automatic").surplus
    require("accelerate.checkpoint.automatic").surplus = function() return { "none" } end
    local lines = stderr_of(function() w.accelerator:save_state() end)
    require("accelerate.checkpoint.automatic").surplus = plan
    matches(lines, "checkpoint_1 is saved, but an older one stays: cannot rename [^\n]*/none to")
    assert(fs.make_dirs(folder .. "/checkpoints/.checkpoint_7.saving"))
    assert(fs.make_dirs(folder .. "/checkpoints/.checkpoint_8.removed"))
    w.accelerator:save_state()
    assert.same({ "checkpoint_2" }, fs.list(folder .. "/checkpoints"))
  end)

  it("is loaded, and a removal that was killed is ended, but drafts stay: their run may be alive", function()
    local w = world()
    w.step()
    w.accelerator:save_state()
    local root = folder .. "/checkpoints/"
    for _, name in ipairs { ".checkpoint_0.removed", ".checkpoint_1.saving", "other" } do
      assert(fs.make_dirs(root .. name .. "/within"))
    end
    w.accelerator:load_state()
    assert.same({ ".checkpoint_1.saving", "checkpoint_0", "other" }, fs.list(root))
  end)

  it("is looked for where naming is automatic", function()
    local w = world()
    assert.error_matches(function() w.accelerator:load_state() end, "there is no whole checkpoint in")
    assert.error_matches(function() w.accelerator:load_state(folder .. "/none") end, "there is no directory")
    state.reset()
    local plain = accelerate.Accelerator { cpu = true }
    assert.error_matches(function() plain:load_state() end, "automatic_checkpoint_naming is off")
    assert.error_matches(function() plain:save_state() end, "save_state: output_dir is missing")
  end)

  it("is never written over another one with automatic naming, and old ones go", function()
    local w = world { project_dir = folder, automatic_checkpoint_naming = true, total_limit = 2 }
    for _ = 1, 4 do w.accelerator:save_state() end
    assert.same({ "checkpoint_2", "checkpoint_3" }, fs.list(folder .. "/checkpoints"))
    w.accelerator.project_configuration.iteration = 3
    assert.error_matches(function() w.accelerator:save_state() end, "checkpoint_3 is there already")
  end)

  it("takes the place of the one before in a folder of its own, and keeps other files", function()
    local w = world {}
    w.accelerator:save_state(folder)
    w.step()
    w.accelerator:save_state(folder .. "/")
    local expected = w.bits()
    assert(fs.write(folder .. "/notes.txt", "mine"))
    w.step()
    w.accelerator:save_state(folder)
    assert.equal("mine", fs.read(folder .. "/notes.txt"))
    w.accelerator:load_state(folder)
    assert.are_not.same(expected, w.bits())
    assert.is_false(fs.exists(folder:gsub("[^/]+$", ".%0.saving")))
  end)

  it("has nothing of the one before it where other files stay", function()
    local w = world {}
    local function save(names)
      assert(fs.make_dirs(folder))
      assert(fs.write(folder .. "/notes.txt", "mine"))
      w.accelerator:save_state(folder)
      local found = fs.list(folder)
      assert.equal(names, table.concat(found, " "):match "gradients_0" or "none")
    end
    w.accelerator:backward(w.model(tensor.ones(3, 4)):sum()) -- a window is open
    save "gradients_0"
    w.optimizer:step()
    w.optimizer:zero_grad()
    save "none"
    -- what the manifest does not list is not the checkpoint's
    w.accelerator:backward(w.model(tensor.ones(3, 4)):sum())
    w.accelerator:save_state(folder .. ".other")
    w.optimizer:zero_grad()
    assert(fs.write(folder .. "/gradients_0.safetensors",
      assert(fs.read(folder .. ".other/gradients_0.safetensors"))))
    w.accelerator:load_state(folder)
    assert.is_nil(w.model.weight.grad)
    w.accelerator:load_state(folder .. ".other")
    assert.is_not_nil(w.model.weight.grad)
    fs.remove_tree(folder .. ".other")
  end)

  it("without a manifest is refused", function()
    local w = world {}
    w.accelerator:save_state(folder)
    os.remove(folder .. "/accelerate_manifest.json")
    assert.error_matches(function() w.accelerator:load_state(folder) end,
      "is no whole checkpoint: it has no accelerate_manifest.json: the save did not end")
  end)

  it("of Accelerate is refused with the name of what takes it", function()
    local w = world {}
    assert(fs.make_dirs(folder))
    local function message()
      local _, why = pcall(w.accelerator.load_state, w.accelerator, folder)
      return why
    end
    assert.is_nil(message():find "Accelerate's")
    assert(fs.write(folder .. "/model.safetensors", ""))
    assert.matches("the save did not end, or it was Accelerate's, which writes none: " ..
      "accelerate.load_checkpoint_in_model takes its weights", message())
    assert(fs.make_dirs(folder .. "/pytorch_model_fsdp_0"))
    assert.matches("which writes none: utils.load_fsdp_model and utils.load_fsdp_optimizer take its folders",
      message())
  end)

  it("that cannot be written leaves the former one", function()
    local w, broken = world {}, false
    w.accelerator:register_for_checkpointing({ state_dict = function()
      if broken then return { callback = print } end
      return {}
    end, load_state_dict = function() end })
    w.accelerator:save_state(folder)
    local expected = w.bits()
    w.step()
    broken = true
    assert.error_matches(function() w.accelerator:save_state(folder) end, "save_state: .*callback.*function")
    broken = false
    w.accelerator:load_state(folder)
    assert.same(expected, w.bits())
    assert(fs.write(folder .. ".file", ""))
    assert.error_matches(function() w.accelerator:save_state(folder .. ".file") end,
      "is a file, not a directory")
    assert.error_matches(function() w.accelerator:save_state(folder .. ".file/a") end, "Not a directory")
    os.remove(folder .. ".file")
  end)

  it("fits the objects that are there", function()
    local w = world {}
    w.accelerator:save_state(folder)
    w.accelerator:register_for_checkpointing({ state_dict = function() return {} end,
      load_state_dict = function() end })
    assert.error_matches(function() w.accelerator:load_state(folder) end,
      "has 0 custom_checkpoint files, and 1 objects are registered")
    state.reset()
    w = world {}
    w.accelerator:prepare(optim.SGD(w.model:parameters(), { lr = 1 }))
    assert.error_matches(function() w.accelerator:load_state(folder) end,
      "has no optimizer_1.bin for optimizer 2 of this Accelerator")
  end)

  it("is loaded with load_kwargs, as Accelerate hands them on", function()
    local w = world {}
    w.accelerator:save_state(folder)
    for _, value in ipairs { true, false } do
      assert.are.equal(folder, w.accelerator:load_state(folder, { load_kwargs = { weights_only = value } }))
    end
    assert.error_matches(function() w.accelerator:load_state(folder, { load_kwargs = { mmap = true } }) end,
      "load_state: load_kwargs: unknown option 'mmap'")
  end)

  it("may have its weights in PyTorch's format", function()
    local w = world {}
    w.accelerator:save_state(folder, { safe_serialization = false })
    assert.is_true(fs.exists(folder .. "/pytorch_model.bin"))
    local expected = w.bits()
    w.step()
    w.accelerator:load_state(folder)
    assert.same(expected, w.bits())
  end)

  it("may have its weights in shards with an index", function()
    local w = world {}
    w.accelerator:prepare(nn.Linear(3, 3))
    for _, safe in ipairs { true, false } do
      w.accelerator:save_state(folder, { max_shard_size = 32, safe_serialization = safe, async = safe })
      w.accelerator:wait_for_checkpoint()
      local names = table.concat(fs.list(folder), " ")
      local stem, ending = safe and "model" or "pytorch_model", safe and "safetensors" or "bin"
      for _, name in ipairs { stem .. "-00001-of-00002." .. ending, stem .. "_1-00002-of-00002." .. ending,
        stem .. "." .. ending .. ".index.json", stem .. "_1." .. ending .. ".index.json" } do
        assert.truthy(names:find(name, 1, true), name .. " is not in " .. names)
      end
      local expected = w.bits()
      w.step()
      w.accelerator:load_state(folder)
      assert.same(expected, w.bits())
    end
    assert.error_matches(function() w.accelerator:save_state(folder, { max_shard_size = "much" }) end,
      "max_shard_size: expected a number of bytes or text")
  end)

  it("goes through hooks, which may take weights and models over", function()
    local w, seen = world {}, {}
    w.accelerator:register_save_state_pre_hook(function(models, weights, path)
      seen.save = { #models, #weights, path }
      table.remove(weights)
    end)
    w.accelerator:register_load_state_pre_hook(function(models, path)
      seen.load = { #models, path }
      table.remove(models)
    end)
    w.accelerator:save_state(folder)
    assert.is_false(fs.exists(folder .. "/model.safetensors"))
    w.step()
    local expected = w.bits()
    w.accelerator:load_state(folder)
    assert.same(expected, w.bits())
    assert.same({ save = { 1, 1, folder }, load = { 1, folder } }, seen)
  end)

  it("fails on all ranks when it fails on one", function()
    host.in_folder(function(path)
      ranks.ok(2, ([[
        local accelerator = accelerate.Accelerator { cpu = true }
        local model = accelerator:prepare(require("accelerate.nn").Linear(2, 2))
        accelerator:save_state(%q)
        local real = require("accelerate.checkpoint.contents").save_own
        require("accelerate.checkpoint.contents").save_own = function(...)
          if rank == 1 then error("no space left", 0) end
          return real(...)
        end
        local ok, message = pcall(accelerator.save_state, accelerator, %q)
        check(not ok and message:find("save_state: rank 1: no space left", 1, true), tostring(message))
        check(accelerator:load_state(%q) == %q)
      ]]):format(path .. "/c", path .. "/c", path .. "/c", path .. "/c"))
      assert.same({ "c" }, fs.list(path))
    end)
  end)

  it("brings the ranks together four times", function()
    host.in_folder(function(path)
      ranks.ok(2, [[
        local accelerator = accelerate.Accelerator { cpu = true }
        accelerator:prepare(require("accelerate.nn").Linear(2, 2))
        local met, real = 0, core.dist.all_gather_bytes
        core.dist.all_gather_bytes = function(...)
          met = met + 1
          return real(...)
        end
        for _, async in ipairs { false, true } do
          met = 0
          accelerator:save_state(arg[1], { async = async })
          check(met == 4, ("async = %s: they met %d times"):format(tostring(async), met))
        end
      ]], { arguments = { path .. "/c" } })
    end)
  end)

  it("takes a manifest for whole only with the checksum that its lines have", function()
    local name, format = core._manifest()
    host.in_folder(function(path)
      accelerate.Accelerator { cpu = true }:save_state(path .. "/c")
      local text = assert(fs.read(path .. "/c/" .. name))
      assert.equal(format, require("accelerate.utils.json").decode(text).format)
      assert.is_true(core._manifest_is_whole(text))
      for _, cut in ipairs { 0, 1, 2, 3, #text - 1, #text / 2 } do
        assert.is_false(core._manifest_is_whole(text:sub(1, cut)))
      end
      assert.is_false(core._manifest_is_whole(text .. "\n"))
      assert.is_false(core._manifest_is_whole("\n" .. text))
      assert.is_false(core._manifest_is_whole((text:gsub("accel", "axcel", 1))))
      assert.is_false(core._manifest_is_whole("\n\n\n"))
    end)
  end)

  it("says that what LocalSGD keeps on each rank is not in it", function()
    host.in_folder(function(path)
      local _, err = ranks.ok(2, [[
        local accelerator = accelerate.Accelerator { cpu = true }
        local model = accelerator:prepare(require("accelerate.nn").Linear(2, 2))
        accelerate.local_sgd.LocalSGD(accelerator, model, 4, function() accelerator:save_state(arg[1]) end)
        accelerator:save_state(arg[1])
      ]], { arguments = { path .. "/c" } })
      matches(err, "save_state: LocalSGD trains model 1: parameters and optimizer states that each rank " ..
        "has for itself are not saved but those of rank 0")
      assert.equal(1, select(2, err:gsub("LocalSGD", "")))
    end)
  end)

end)
