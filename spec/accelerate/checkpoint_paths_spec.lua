-- Where save_state may write: the paths that scripts give, and the names that a folder's files say.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local ffi = require "ffi"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local machines = require "spec.support.machines"
local messages = require "spec.support.messages"
local nn = require "accelerate.nn"
local optim = require "accelerate.optim"
local processes = require "spec.support.processes"
local state = require "accelerate.state"

local has, matches, raises = messages.has, messages.matches, messages.raises

pcall(ffi.cdef, "int chdir(const char *path);")

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

local folder, accelerator
local function prepare(project)
  state.reset()
  accelerator = accelerate.Accelerator { cpu = true,
    project_config = accelerate.ProjectConfiguration(project or {}) }
  local model = nn.Linear(2, 1)
  accelerator:prepare(model, optim.SGD(model:parameters(), { lr = 1 }))
  return accelerator
end

local function put(path, text)
  assert(fs.make_dirs(path:match "^(.*)/"))
  assert(fs.write(path, text))
end

local function in_folder_of_its_own()
  before_each(function()
    folder = host.free_path()
    assert(fs.make_dirs(folder))
  end)
  after_each(function()
    state.reset()
    fs.remove_tree(folder)
  end)
end

describe("a manifest of somebody else's", function()
  in_folder_of_its_own()

  -- Its checksum is right, as anybody can write it.
  local function manifest(name)
    local text = ('{\n "files": {\n  %s: {"bytes": 1, "crc32c": 1}\n },\n "format": 2,\n "saved_by": {},\n')
      :format(require("accelerate.utils.json").encode(name))
    put(folder .. "/ck/accelerate_manifest.json", ('%s "crc32c": %.0f\n}\n'):format(text, core._crc32c(text)))
  end

  local NAMES = { "../victim", "./../victim", "../victim/file", "..", ".", "", "inner/../../victim",
    "a\n../victim",
    "../victim\0", "accelerate_manifest.json" }

  it("is refused where it lists what is no name of a file in the folder", function()
    prepare()
    for _, name in ipairs(NAMES) do
      manifest(name)
      local why = raises("accelerate_manifest.json is damaged: it lists", accelerator.load_state, accelerator,
        folder .. "/ck")
      has(why, "which is no name of a file of a checkpoint")
    end
  end)

  it("removes nothing outside its folder, and no folder in it", function()
    prepare()
    put(folder .. "/victim/file", "precious")
    put(folder .. "/ck/README", "mine")
    put(folder .. "/ck/photos/1", "mine, too")
    for _, name in ipairs { "photos", unpack(NAMES) } do
      manifest(name)
      accelerator:save_state(folder .. "/ck")
      accelerator:load_state(folder .. "/ck")
      assert.equal("precious", fs.read(folder .. "/victim/file"))
      assert.equal("mine", fs.read(folder .. "/ck/README"))
      assert.equal("mine, too", fs.read(folder .. "/ck/photos/1"))
    end
  end)

  it("is refused again before something is removed", function()
    prepare()
    put(folder .. "/victim/file", "precious")
    put(folder .. "/ck/README", "mine")
    local commit = require "accelerate.checkpoint.commit"
    local plan = commit.plan
    for _, names in ipairs { "../victim\n", "README\n..\n", ".\n", "\n", "a\127\n" } do
      commit.plan = function(...)
        local made = plan(...)
        made.former = names
        return made
      end
      local ok, why = pcall(accelerator.save_state, accelerator, folder .. "/ck")
      commit.plan = plan
      assert.is_false(ok)
      has(why, "which is no name of a file in it; nothing was removed")
      assert.equal("mine", fs.read(folder .. "/ck/README"))
    end
    assert.equal("precious", fs.read(folder .. "/victim/file"))
  end)

  it("is read up to 64 MB", function()
    prepare()
    manifest "model.safetensors"
    local file = assert(io.open(folder .. "/ck/accelerate_manifest.json", "r+b"))
    file:seek("set", 2 ^ 26)
    file:write " "
    file:close()
    raises("accelerate_manifest.json: has 67108865 bytes; expected at most 67108864", accelerator.load_state,
      accelerator, folder .. "/ck")
  end)
end)

describe("names in files", function()
  in_folder_of_its_own()

  it("of weights are files of the index's folder", function()
    for _, name in ipairs { "..", ".", "", "../a.bin", "a\n" } do
      put(folder .. "/model.safetensors.index.json",
        require("accelerate.utils.json").encode { weight_map = { weight = name } })
      raises("'weight' must name a file beside it", accelerate.load_checkpoint_in_model, nn.Linear(1, 1),
        folder)
    end
  end)

  it("of offloaded weights do not lead out of the folder", function()
    local utils = require "accelerate.utils"
    raises("must not be empty, and not hold '/'", utils.offload_state_dict, folder .. "/off",
      { ["../outside"] = core.ones(1) })
    assert.is_false(fs.exists(folder .. "/outside.dat"))
    put(folder .. "/off/index.json", '{"../outside": {"dtype": "float32", "shape": [1]}}')
    put(folder .. "/outside.dat", "\0\0\0\0")
    local loader = utils.OffloadedWeightsLoader { save_folder = folder .. "/off" }
    raises("must not be empty, and not hold '/'", function() return loader["../outside"] end)
  end)

  it("of commits are snapshots of the cache", function()
    put(folder .. "/models--a/refs/main", "../../secret")
    put(folder .. "/secret/config.json", "{}")
    assert(fs.make_dirs(folder .. "/models--a/snapshots"))
    local find = require("accelerate.models.folder").find
    raises("has no " .. folder .. "/models--a/snapshots/main", find, "from_pretrained", "a",
      { revision = "main", cache_dir = folder })
  end)
end)

describe("save_state", function()
  in_folder_of_its_own()

  local function saves_and_loads(path, expected)
    assert.equal(expected or path, accelerator:save_state(path))
    assert.equal(expected or path, accelerator:load_state(path))
  end

  it("follows a link to a folder, which stays", function()
    prepare()
    assert(fs.make_dirs(folder .. "/real"))
    os.execute(("ln -s real %s/link"):format(folder))
    for _, path in ipairs { "/link", "/link", "/link/", "/link/inner" } do saves_and_loads(folder .. path) end
    assert.is_true(fs.is_link(folder .. "/link"))
    assert.is_true(fs.exists(folder .. "/real/accelerate_manifest.json"))
    assert.is_true(fs.exists(folder .. "/real/inner/accelerate_manifest.json"))
  end)

  it("takes paths with dots and slashes in them", function()
    prepare()
    for _, path in ipairs { "/a//b///", "/a/b/..", "/new/.", "/new/../other" } do
      saves_and_loads(folder .. path)
    end
  end)

  it("says what is no path of a folder", function()
    prepare()
    for _, path in ipairs { "", "a\0b" } do
      raises("save_state: output_dir must be the path of a folder, got", accelerator.save_state, accelerator,
        path)
      raises("load_state: input_dir must be the path of a folder, got", accelerator.load_state, accelerator,
        path)
    end
    os.execute(("ln -s nowhere %s/link"):format(folder))
    raises("/link is a link to what is not there", accelerator.save_state, accelerator, folder .. "/link")
  end)

  it("has the user's home for a leading ~, as load_state has", function()
    local status, out, err = host.run({ "-e", [[
      local accelerator = require("accelerate").Accelerator { cpu = true }
      accelerator:prepare(require("accelerate.nn").Linear(1, 1))
      print(accelerator:save_state "~/runs/a")
      print(accelerator:load_state "~/runs/a")
      print(require("accelerate.host").expand_user "~nobody-of-this-name/a")
    ]] }, { env = { HOME = folder } })
    assert.equal(0, status, err)
    assert.equal(("%s/runs/a\n%s/runs/a\n~nobody-of-this-name/a\n"):format(folder, folder), out)
    assert.is_true(fs.exists(folder .. "/runs/a/accelerate_manifest.json"))
  end)

  it("leaves the process its working folder", function()
    prepare()
    local here = assert(fs.real ".")
    assert(fs.make_dirs(folder .. "/here"))
    assert(ffi.C.chdir(folder .. "/here") == 0)
    local ok, why = pcall(function()
      for _ = 1, 2 do saves_and_loads "." end
      saves_and_loads "../here"
      assert.equal(folder .. "/here", fs.real ".")
      assert.same(fs.list(folder .. "/here"), fs.list ".")
    end)
    assert(ffi.C.chdir(here) == 0)
    assert(ok, why)
    assert.same({ "here" }, fs.list(folder))
  end)

  it("fills a folder that nothing can take the place of, as that of a disk", function()
    -- one at a time: these tests may run beside themselves
    local status, _, err = host.run({ "/dev/shm", host.path, "-e", [[
      local accelerator = require("accelerate").Accelerator { cpu = true }
      accelerator:prepare(require("accelerate.nn").Linear(1, 1))
      for _ = 1, 2 do
        accelerator:save_state "/dev/shm"
        accelerator:load_state "/dev/shm"
      end
      local fs = require "accelerate.utils.fs"
      for _, name in ipairs { "accelerate_manifest.json", "model.safetensors", "random_states_0.pkl" } do
        assert(os.remove("/dev/shm/" .. name))
      end
      assert(not fs.exists "/dev/shm/.accelerate.saving")
      assert(not fs.exists "/dev/.shm.saving")
    ]] }, { path = "flock" })
    assert.equal(0, status, err)
  end)

  it("removes older checkpoints also in a project_dir with a line feed in its name", function()
    prepare { project_dir = folder .. "/a\nb", automatic_checkpoint_naming = true, total_limit = 1 }
    put(folder .. "/a/file", "precious")
    for _ = 1, 3 do accelerator:save_state() end
    assert.same({ "checkpoint_2" }, fs.list(folder .. "/a\nb/checkpoints"))
    assert.equal("precious", fs.read(folder .. "/a/file"))
  end)

  it("says that a checkpoint with a higher number is there", function()
    local project = { project_dir = folder, automatic_checkpoint_naming = true, total_limit = 3 }
    prepare(project)
    accelerator.project_configuration.iteration = 9
    for _ = 9, 11 do accelerator:save_state() end
    prepare(project)
    accelerator:load_state()
    local lines = stderr_of(function()
      accelerator:save_state()
      accelerator:save_state()
    end)
    has(lines, "save_state: checkpoint_11 is there; this is checkpoint_0: load_state() without a " ..
      "folder takes checkpoint_11, and total_limit removes the lowest numbers first; set " ..
      "project_configuration.iteration to 12")
    assert.equal(1, select(2, lines:gsub("\n", "")))
    assert.same({ "checkpoint_1", "checkpoint_10", "checkpoint_11" }, fs.list(folder .. "/checkpoints"))
    prepare(project)
    accelerator:load_state()
    accelerator.project_configuration.iteration = 12
    assert.equal("", stderr_of(function() accelerator:save_state() end))
  end)

  it("leaves alone a checkpoint whose number is no integer here", function()
    prepare { project_dir = folder, automatic_checkpoint_naming = true, total_limit = 2 }
    local huge = "checkpoint_99999999999999999999"
    put(folder .. "/checkpoints/" .. huge .. "/file", "x")
    local lines = stderr_of(function() accelerator:save_state() end)
    has(lines, huge .. " is there; this is checkpoint_0")
    assert.is_nil(lines:find("-9223372036854775808", 1, true))
    matches(stderr_of(function() accelerator:load_state() end), "passed over [^\n]*/" .. huge ..
      ": it has no")
  end)
end)

describe("save_on_each_node", function()
  after_each(processes.clean)

  it("lets the main process of every machine write a checkpoint with its own ranks in it", function()
    host.in_folder(function(path)
      machines.ok([[
        local accelerate = require "accelerate"
        local ffi = require "ffi"
        local fs = require "accelerate.utils.fs"
        ffi.cdef "int chdir(const char *path);"
        local project = accelerate.ProjectConfiguration { save_on_each_node = true, total_limit = 2,
          project_dir = "runs", automatic_checkpoint_naming = true }
        local accelerator = accelerate.Accelerator { cpu = true, project_config = project }
        local machine = ("%s/machine_%d"):format(arg[1],
          (accelerator.process_index - accelerator.local_process_index) / 2)
        assert(fs.make_dirs(machine))
        accelerator:wait_for_everyone()
        assert(ffi.C.chdir(machine) == 0)
        local model = accelerator:prepare(require("accelerate.nn").Linear(2, 2))
        for i = 1, 3 do accelerator:save_state { async = i == 2 } end
        accelerator:save({ x = 1 }, "x.pt")
        accelerator:save_model(model, "model")
        local saved = model.weight:totable()
        require("accelerate.tensor").no_grad(function() model.weight:fill_(0) end)
        accelerator:load_state()
        for i, row in ipairs(saved) do assert(row[1] == model.weight:totable()[i][1]) end
        project.automatic_checkpoint_naming = false
        for _ = 1, 2 do
          accelerator:save_state "own"
          accelerator:load_state "own"
        end
      ]], { arguments = { path } })
      for machine = 0, 1 do
        local at = ("%s/machine_%d"):format(path, machine)
        assert.same({ "model", "own", "runs", "x.pt" }, fs.list(at))
        assert.same({ "checkpoint_1", "checkpoint_2" }, fs.list(at .. "/runs/checkpoints"))
        for _, name in ipairs { "/runs/checkpoints/checkpoint_2", "/own" } do
          assert.same({ "accelerate_manifest.json", "model.safetensors",
            ("random_states_%d.pkl"):format(2 * machine), ("random_states_%d.pkl"):format(2 * machine + 1) },
            fs.list(at .. name))
        end
      end
    end)
  end)
end)
