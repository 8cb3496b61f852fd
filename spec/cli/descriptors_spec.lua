-- A process without a free descriptor: whatever it opens says so, and nothing says that a file is
-- not there.
local host = require "spec.support.host"

-- `full()` takes all descriptors; modules are loaded before that, unless `code` loads them.
local PRELUDE = [[
local ffi = require "ffi"
ffi.cdef "struct limit { unsigned long now, most; }; int setrlimit(int what, const struct limit *l);"
local accelerate, data, nn, tensor = require "accelerate", require "accelerate.data",
  require "accelerate.nn", require "accelerate.tensor"
local utils, weights = require "accelerate.utils", require "accelerate.weights"
local accelerator, model = accelerate.Accelerator(), nn.Linear(2, 2)
for _, name in ipairs { "checkpoint", "files", "data.loader", "data.workers", "data.fashion_mnist",
  "data.dataset_dict", "data.table", "data.readers", "models.loading" } do require("accelerate." .. name) end
local function full()
  ffi.C.setrlimit(7, ffi.new("struct limit", 40, 40))
  local held, file = {}, io.open "/dev/null"
  while file do
    held[#held + 1], file = file, io.open "/dev/null"
  end
  return held
end
local held = full()
]]

describe("without a free descriptor", function()
  local function case(name, code, ...)
    local parts = { "Too many open files", ... }
    it(name .. " says so", function()
      host.in_folder(function(folder)
        os.execute(("mkdir '%s/here'"):format(folder))
        local status, _, err = host.run({ "-e", PRELUDE .. code }, { folder = folder })
        assert.equal(1, status, err)
        for _, part in ipairs(parts) do assert(err:find(part, 1, true), err) end
        for _, wrong in ipairs { "not found", "no file", "there is no", "not a directory" } do
          assert(not err:find(wrong, 1, true), err)
        end
      end)
    end)
  end

  case("require", [[require "accelerate.tracking"]], "module 'accelerate.tracking' cannot be read")
  case("require of the script's module", [[require "mine"]], "module 'mine'")
  case("dofile", [[dofile "x.lua"]], "x.lua")
  case("a worker", [[
    local set = data.TensorDataset(tensor.zeros(8, 2))
    for x in data.DataLoader(set, { batch_size = 2, num_workers = 1 }):iter() do end]], "a worker needs")
  case("save_model", [[accelerator:save_model(model, "here")]])
  case("save_state", [[accelerator:save_state("here/state")]])
  case("utils.load", [[utils.load "here"]])
  case("a dataset", [[data.load_dataset("csv", { data_files = "a.csv" })]], "a.csv")
  case("a script", [[assert(loadfile "x.lua")]], "x.lua")

  it("a folder is one all the same", function()
    host.in_folder(function(folder)
      local code = [[
        local fs = require "accelerate.utils.fs"
        assert(fs.is_dir "." and fs.is_dir "/tmp/" and not fs.is_dir "/dev/null" and not fs.is_dir "nowhere"
          and not fs.is_dir "" and fs.is_file "/dev/null")]]
      local status, _, err = host.run({ "-e", PRELUDE:gsub("local held = full%(%)",
        function() return "local held = full() " .. code end) .. "" }, { folder = folder })
      assert.equal(0, status, err)
    end)
  end)
end)
