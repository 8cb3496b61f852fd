-- A walk over what people get wrong.  Each case runs in a process of its own and must end with
-- status 1 (2 for the command line) and a message that names the thing: never a signal, never a
-- silent success.
local host = require "spec.support.host"

local PRELUDE = [[
local accelerate, core = require "accelerate", require "accelerate.core"
local tensor, nn, optim, data =
  require "accelerate.tensor", require "accelerate.nn", require "accelerate.optim", require "accelerate.data"
local x, labels = tensor.zeros(64, 784), tensor.zeros(4, { dtype = "int64" })
local model = nn.Linear(4, 2)
local three = data.TensorDataset(tensor.zeros(3, 2), tensor.zeros(3, { dtype = "int64" }))
]]

local function check(status, expected_status, err, parts)
  assert(status == expected_status, ("expected status %d, got %d; stderr:\n%s"):format(expected_status,
    status, err))
  for _, part in ipairs(parts) do
    assert(err:find(part, 1, true), ("expected %q in stderr:\n%s"):format(part, err))
  end
end

--- it("name"): runs `code` after the prelude; stderr has the script's line and every one of the
--- strings.
local function case(name, code, ...)
  local parts = { ... }
  it(name, function()
    local status, out, err = host.run({ "-e", PRELUDE .. code })
    check(status, 1, err .. out, parts)
    assert(err:find("(command line):7:", 1, true), "the message does not name the script's line:\n" .. err)
  end)
end

describe("the command line", function()
  local function usage(name, arguments, status, ...)
    local parts = { ... }
    it(name, function()
      local got, _, err = host.run(arguments)
      check(got, status, err, parts)
    end)
  end

  usage("names a script that is not there", { "nowhere/train.lua" }, 1, "nowhere/train.lua", "No such file")
  usage("names a script that is not there on two ranks", { "--num_processes", "2", "nowhere/train.lua" }, 1,
    "nowhere/train.lua", "No such file")
  it("names a stack that is too small, and takes a larger one where it may", function()
    for limit, expected in pairs {
      ["-s 64"] = "the limit of the stack is 64 KiB %(ulimit %-s%); expected at least 128",
      ["-S -s 64"] = "^8192$" } do
      local pipe = io.popen(("ulimit -H -s 8192; ulimit %s; '%s' -e 'os.execute [[ulimit -s]]' 2>&1"):format(
        limit,
        host.path))
      local said = pipe:read "*a"
      pipe:close()
      assert(said:gsub("%s+$", ""):find(expected), said)
    end
  end)
  usage("names a script that is a folder", { "spec" }, 1, "spec", "directory")
  usage("refuses 0 processes", { "--num_processes", "0", "-e", "" }, 2, "--num_processes", "got 0")
  usage("refuses 1000 processes", { "--num_processes", "1000", "-e", "" }, 2, "--num_processes", "got 1000")
  usage("refuses a number of processes that is a word", { "--num_processes", "two", "-e", "" }, 2,
    "--num_processes", "'two'")
  usage("refuses GPUs named twice", { "--gpu_ids", "0,0", "-e", "" }, 2, "--gpu_ids", "got '0,0'")
  usage("refuses GPUs that are no numbers", { "--gpu_ids", "first", "-e", "" }, 2, "--gpu_ids", "got 'first'")
  usage("refuses more ranks than GPUs named", { "--gpu_ids", "0,2", "--num_processes", "3", "-e", "" }, 2,
    "0,2 names 2 GPUs", "3 ranks need one each")
  usage("refuses ranks that cannot be divided among machines", { "--num_machines", "2",
    "--num_processes", "3", "-e", "" }, 2, "3 ranks (--num_processes)", "2 machines (--num_machines)")
  usage("says that an option needs a value", { "--num_processes" }, 2, "--num_processes", "needs a value")
  usage("names the option nearest to a misspelt one", { "--num_proceses", "2", "-e", "" }, 2,
    "--num_proceses", "--num_processes")
  usage("refuses a short option that is not there", { "-x" }, 2, "-x")
  usage("says that -e needs code", { "-e" }, 2, "-e")
  usage("names the line of a syntax error", { "-e", "x = = 1" }, 1, "(command line):1:", "unexpected symbol")

  it("names an environment variable with a value that does not fit", function()
    local status, _, err = host.run({ "-e", "" }, { env = { ACCELERATE_NUM_PROCESSES = "many" } })
    check(status, 2, err, { "ACCELERATE_NUM_PROCESSES", "'many'" })
  end)

  it("says why GPUs that were asked for are not there", function()
    local status, _, err = host.run({ "--gpu_ids", "0", "-e", "require('accelerate').Accelerator()" },
      { env = { ACCEL_CUDA_PLUGIN = "/nowhere/libax_cuda.so" } })
    check(status, 1, err, { "--gpu_ids 0: ", "there is no /nowhere/libax_cuda.so",
      "leave it out to run on the CPU" })
  end)

  it("names a stdin that cannot be read", function()
    local status, _, err = host.run({ "-c", 'exec "$0" - < /', host.path }, { path = "/bin/sh" })
    check(status, 1, err, { "cannot read the script from stdin", "directory" })
  end)

  it("names the line of an error in a script that is a pipe, which has one reader", function()
    local path = os.tmpname()
    os.remove(path)
    local status, _, err = host.run({ "-c", ([[mkfifo '%s'
      printf 'local model = nil\nmodel.size = 3\n' > '%s' &
      "$0" '%s'; status=$?; rm '%s'; exit $status]]):gsub("%%s", path), host.path }, { path = "/bin/sh" })
    check(status, 1, err, { host.shown_path(path) .. ":2: attempt to index local 'model' (a nil value)" })
  end)

  it("refuses bytes that are no script", function()
    local status, _, err = host.run({ "-" }, { stdin = "\27LJ\2\0\0\0garbage" })
    check(status, 1, err, { "stdin", "bytecode" })
  end)
end)

describe("wrong shapes", function()
  case("in matmul", 'x:matmul(tensor.zeros(512, 256))', "matmul", "[64, 784]", "[512, 256]")
  case("in a sum that does not broadcast", 'local _ = tensor.zeros(2, 3) + tensor.zeros(4)', "add", "[2, 3]",
    "[4]")
  case("in a layer, which is named", 'nn.Linear(10, 3)(x)', "[64, 784]", "[3, 10]", "in_features=10")
  case("in view", 'tensor.zeros(2, 3):view(4, 2)', "view", "[2, 3]", "[4, 2]")
  case("in cat", 'tensor.cat({ tensor.zeros(2, 3), tensor.zeros(2, 4) }, 1)', "cat", "[2, 3]", "[2, 4]")
  case("in stack", 'tensor.stack({ tensor.zeros(2, 3), tensor.zeros(2, 4) })', "stack", "[2, 3]", "[2, 4]")
  case("of labels", 'nn.CrossEntropyLoss()(tensor.zeros(5, 10), labels)', "cross_entropy", "[5, 10]", "[4]")
  case("in an assignment", 'x[1] = tensor.zeros(3)', "[3]", "[784]")
  case("of a nested list", 'tensor({ { 1, 2 }, { 3 } })', "ragged", "{2}")
  case("of parts of a data set", 'data.TensorDataset(tensor.zeros(3, 2), tensor.zeros(4))', "TensorDataset",
    "has 3", "has 4")
  case("in a state dict", 'model:load_state_dict({ weight = tensor.zeros(3, 3) })', "'weight'", "[3, 3]",
    "[2, 4]", "missing", "bias")
  case("with a negative size", 'tensor.zeros(-1)', "zeros", "-1")
  case("with too many dims", 'tensor.zeros(1, 1, 1, 1, 1, 1, 1, 1, 1)', "9", "8 dims")
  case("with more elements than there is memory", 'tensor.zeros(1e15)', "out of memory")
  case("with more elements than can be counted", 'tensor.zeros(1e10, 1e10)', "zeros",
    "[10000000000, 10000000000]")
  case("for item", 'x:item()', "item", "[64, 784]")
  case("for backward without a gradient",
    'local y = tensor.zeros(3, { requires_grad = true }); (y * 2):backward()', "backward", "[3]")
end)

describe("wrong types", function()
  case("in matmul", 'x:matmul(tensor.zeros(784, 2, { dtype = "int64" }))', "matmul", "float32", "int64")
  case("of labels", 'nn.CrossEntropyLoss()(tensor.zeros(4, 10), tensor.zeros(4))', "cross_entropy", "int64",
    "float32")
  case("of indices", 'x:index_select(1, tensor.zeros(3))', "index_select", "int64", "float32")
  case("for a gradient", 'tensor.zeros(2, { dtype = "int64" }).requires_grad = true', "requires_grad",
    "int64")
  case("with a name that is misspelt", 'tensor.zeros(2, { dtype = "flot32" })', '"flot32"', '"float32"')
  case("of an operand", 'local _ = x + "a"', "add", "a tensor or a number", 'string "a"')
  case("of an operand that is nil", 'local _ = x + nil', "add", "nil")
  case("in a list", 'tensor({ 1, "a" })', "{2}", 'string "a"')
  case("of what a layer gets", 'model({ 1, 2 })', "linear", "expected a tensor")
  case("of what a layer does not get", 'model()', "linear", "missing")
  case("of a layer in a Sequential", 'nn.Sequential(nn.ReLU(), 3)', "Sequential", "entry 2", "3")
  case("of parameters", 'optim.AdamW(model, {})', "AdamW", "model:parameters()")
  case("of no parameters", 'optim.AdamW({}, {})', "AdamW", "empty")
  case("of a loss", 'accelerate.Accelerator():backward(3)', "backward", "3")
  case("of what is gathered", 'accelerate.Accelerator():gather("x")', "gather", "string")
  case("of a data set", 'data.DataLoader(3)', "DataLoader", "get(i)", "3")
  case("of a scheduler's function",
    'optim.lr_scheduler.LambdaLR(optim.SGD(model:parameters(), { lr = 1 }), 3)', "LambdaLR", "function", "3")
end)

describe("a misspelt or unfit option", function()
  case("of a constructor", 'tensor.zeros(2, { dtpye = "int64" })', "zeros", '"dtpye"', '"dtype"')
  case("of an op", 'x:sum({ keepdm = true })', "sum", '"keepdm"', '"keepdim"')
  case("of a layer", 'nn.Linear(2, 2, { bais = false })', "Linear", "'bais'", "'bias'")
  case("of an optimizer", 'optim.AdamW(model:parameters(), { weight_deacy = 1 })', "AdamW", "'weight_deacy'",
    "'weight_decay'")
  case("of an optimizer, nothing near", 'optim.AdamW(model:parameters(), { rate_of_learning = 1 })', "AdamW",
    "'rate_of_learning'", "lr")
  case("of a scheduler", 'optim.lr_scheduler.CosineAnnealingLR(optim.SGD(model:parameters(), { lr = 1 ' ..
    '}), { T_maxx = 3 })', "'T_maxx'", "'T_max'")
  case("of a loader", 'data.DataLoader(three, { batchsize = 2 })', "DataLoader", "'batchsize'",
    "'batch_size'")
  case("of a data set", 'data.FashionMNIST { splt = "test" }', "FashionMNIST", "'splt'", "'split'")
  case("of the Accelerator", 'accelerate.Accelerator { mixed_precison = "no" }', "Accelerator",
    "'mixed_precison'", "'mixed_precision'")
  case("that is a class", 'accelerate.Acelerator()', "'Acelerator'", "'Accelerator'")
  case("that is a method", 'accelerate.Accelerator():prepar(model)', "'prepar'", "'prepare'")
  case("that is a tensor's method", 'x:sume()', '"sume"', '"sum"')
  case("with a word that is not one of them", 'data.FashionMNIST { split = "tests" }', "'split'", "'tests'",
    "'test'")
  case("with a number below the least", 'data.DataLoader(three, { batch_size = 0 })', "'batch_size'",
    "at least 1", "0")
  case("with a string for a number", 'data.DataLoader(three, { batch_size = "64" })', "'batch_size'", "'64'")
  case("with a negative rate", 'optim.AdamW(model:parameters(), { lr = -1 })', "'lr'", "-1")
  case("with a probability above 1", 'nn.Dropout(2)', "Dropout", "2")
  case("with 0 accumulation steps", 'accelerate.Accelerator { gradient_accumulation_steps = 0 }',
    "'gradient_accumulation_steps'", "0")
  case("with a device that is not there", 'tensor.zeros(2, { device = "cuda:0" })', "CUDA")
  case("with a device that does not exist", 'tensor.zeros(2, { device = "cpuu" })', '"cpuu"')
end)

describe("an index out of range", function()
  case("above", 'local _ = x[65]', "65", "[64, 784]")
  case("of 0", 'local _ = x[0]', "count from 1")
  case("in an assignment", 'x[65] = 1', "65", "64")
  case("in a slice", 'local _ = x[{ { 1, 99 } }]', "{1, 99}", "64")
  case("with more entries than dims", 'local _ = x[{ 1, 1, 1 }]', "3 entries", "[64, 784]")
  case("that is no number", 'x:select(1, 0 / 0)', "select", "nan")
  case("of a dim", 'x:sum(3)', "sum", "dim 3")
  case("of dim 0", 'x:sum(0)', "sum", "count from 1")
  case("in narrow", 'x:narrow(1, 60, 10)', "narrow", "60", "[64, 784]")
  case("inside a tensor", 'x:index_select(1, tensor({ 64 }, { dtype = "int64" }))', "index_select", "64",
    "0..63")
  case("of a class",
    'nn.CrossEntropyLoss()(tensor.zeros(4, 10), tensor.full({ 4 }, 10, { dtype = "int64" }))',
    "cross_entropy", "10", "0..9")
  case("of a sample", 'three:get(4)', "TensorDataset", "1 to 3", "4")
  case("of sample 0", 'three:get(0)', "1 to 3", "0")
  case("of a sample between two", 'three:get(1.5)', "1 to 3", "1.5")
  case("of an image", 'data.FashionMNIST { split = "test" }:get(10001)', "FashionMNIST", "10001")
end)

describe("the tape", function()
  case("says that nothing was recorded", 'x:sum():backward()', "backward", "requires_grad")
  case("says that a graph is spent",
    'local y = tensor.ones(3, { requires_grad = true }); local z = (y * y):sum(); z:backward(); z:backward()',
    "backward", "retain_graph")
  case("protects leaves", 'tensor.zeros(3, { requires_grad = true }):add_(1)', "add_", "no_grad")
  case("notices an edit",
    'local y = tensor.ones(3, { requires_grad = true }); local z = y * 2; local s = (z * z):sum(); ' ..
    'z:add_(1); s:backward()', "mul")
end)

describe("files", function()
  -- Each is written into a folder, and `code` sees its path as PATH.
  local function file(name, bytes, code, ...)
    local parts = { ... }
    it(name, function()
      host.in_folder(function(folder)
        local path = folder .. "/broken"
        local f = assert(io.open(path, "wb"))
        f:write(bytes)
        f:close()
        local status, _, err = host.run({ "-e", ("local PATH = %q\n"):format(path) ..
          'local core = require "accelerate.core"\n' .. code })
        parts[#parts + 1] = path
        check(status, 1, err, parts)
      end)
    end)
  end

  local function be(n) return string.char(0, 0, 0, n) end
  local idx = "\0\0\8\2" .. be(2) .. be(3) .. "abcdef" -- uint8 [2, 3]
  local READ_IDX = "core.read_idx(PATH)"
  file("an IDX file that is empty", "", READ_IDX)
  file("an IDX file cut in its magic number", idx:sub(1, 3), READ_IDX)
  file("an IDX file cut in its header", idx:sub(1, 9), READ_IDX)
  file("an IDX file cut in its data", idx:sub(1, -2), READ_IDX)
  file("an IDX file with bytes after its end", idx .. "g", READ_IDX)
  file("an IDX file of sizes that overflow", "\0\0\8\3" .. ("\255"):rep(12) .. "a", READ_IDX)
  file("a text in place of an IDX file", "label,pixel\n1,2\n", READ_IDX)
  file("a broken gzip file", "\31\139\8\0\0\0\0\0\0\3garbage", READ_IDX)

  it("a gzip file that is cut", function()
    host.in_folder(function(folder)
      local path = folder .. "/t10k-labels-idx1-ubyte.gz"
      os.execute(("head -c 2000 /usr/share/datasets/fashion-mnist/t10k-labels-idx1-ubyte.gz >'%s'"):format(
        path))
      local status, _, err = host.run({ "-e", ("require('accelerate.core').read_idx(%q)"):format(path) })
      check(status, 1, err, { path })
    end)
  end)

  it("a data set that is not there", function()
    local status, _, err = host.run({ "-e", "require('accelerate.data').FashionMNIST { root = '/nowhere' }" })
    check(status, 1, err, { "FashionMNIST", "/nowhere", "dataset-fashion-mnist" })
  end)

  local function le(n) return string.char(n % 256, math.floor(n / 256), 0, 0, 0, 0, 0, 0) end
  local function weights(header, bytes) return le(#header) .. header .. bytes end
  local good = '{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
  local LOAD = "core.safetensors_load(PATH)"
  file("weights that are empty", "", LOAD)
  file("weights cut in the length", "\1\0\0", LOAD)
  file("weights cut in the header", weights(good, ""):sub(1, 20), LOAD)
  file("weights cut in the data", weights(good, "1234567"), LOAD)
  file("weights with a header of absurd length", ("\255"):rep(8) .. good, LOAD)
  file("weights whose header is no JSON", weights("not JSON at all", ""), LOAD)
  file("weights of an unknown type", weights((good:gsub("F32", "F33")), "12345678"), LOAD, "F33")
  file("weights with offsets outside the file", weights((good:gsub("8%]", "800]")), "12345678"), LOAD)
  file("weights with a shape that does not fit the offsets", weights((good:gsub("%[2%]", "[3]")), "12345678"),
    LOAD)
  file("weights with a negative size", weights((good:gsub("%[2%]", "[-2]")), "12345678"), LOAD)

  it("weights for another model", function()
    host.in_folder(function(folder)
      local status, _, err = host.run({ "-e", PRELUDE .. ([[
        local accelerator = accelerate.Accelerator()
        accelerator:save_model(model, %q)
        accelerate.load_checkpoint_in_model(nn.Linear(5, 2), %q)]]):format(folder, folder) })
      check(status, 1, err, { "weight", "[2, 4]", "[2, 5]" })
    end)
  end)

  it("a folder that cannot be made", function()
    local status, _, err = host.run({ "-e", PRELUDE ..
      "accelerate.Accelerator():save_model(model, 'Makefile/nowhere')" })
    check(status, 1, err, { "save_model", "Makefile/nowhere" })
  end)
end)

describe("a data set shorter than a batch", function()
  it("is one short batch", function()
    local status, out, err = host.run({ "-e", PRELUDE ..
      "for a in data.DataLoader(three, { batch_size = 64 }):iter() do print(#a) end" })
    assert.equal("0 3\n", status .. " " .. out, err)
  end)

  it("is no batch with drop_last, and that is said once", function()
    local status, out, err = host.run({ "-e", PRELUDE .. [[
      local loader = data.DataLoader(three, { batch_size = 64, drop_last = true })
      for _ = 1, 2 do for _ in loader:iter() do error("a batch") end end]] })
    assert.equal("0 ", status .. " " .. out, err)
    assert.equal("accelerate: DataLoader: there are 3 samples, fewer than batch_size 64, and drop_last " ..
      "leaves no batch of them\n", err)
  end)

  it("is filled up on two ranks", function()
    local status, out, err = host.run({ "--num_processes", "2", "-e", PRELUDE .. [[
      local accelerator = accelerate.Accelerator()
      local loader = accelerator:prepare(data.DataLoader(three, { batch_size = 64 }))
      local n = 0
      for a in loader:iter() do n = n + #accelerator:gather_for_metrics(a) end
      accelerator:print(n)]] })
    assert.equal("0 3\n", status .. " " .. out, err)
  end)
end)
