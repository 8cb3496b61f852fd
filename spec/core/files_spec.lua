-- Files that are no files, that shrink while they are read, and disks that end.
local core = require "accelerate.core"
local data = require "accelerate.data"
local disk = require "spec.support.disk"
local files = require "accelerate.files"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local messages = require "spec.support.messages"
local processes = require "spec.support.processes"

local raises, raises_like = messages.raises, messages.raises_like

local function shell(command)
  local result = os.execute(command)
  assert(result == true or result == 0, command)
end

--- Names in a folder, with folders below it.
local function names(folder)
  local pipe = io.popen(("cd '%s' && find . -type f | sort"):format(folder))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

describe("a reader", function()
  it("refuses at once what is no regular file, and names it", function()
    host.in_folder(function(folder)
      shell(("mkfifo '%s/pipe.json'"):format(folder))
      local status, out, err = host.run({ "-e", ([[
        local core, data = require "accelerate.core", require "accelerate.data"
        local paths = { "%s/pipe.json", "%s", "/dev/zero" }
        for _, path in ipairs(paths) do
          for _, read in ipairs { data.read_json, data.read_csv, core.read_npy, core.read_npz, core.read_idx,
            core.read_image, core.safetensors_load, function(p) return core._tokens(p, 2, 0) end } do
            local ok, message = pcall(read, path)
            print(ok, message:find("not a regular file but a %%l+") ~= nil,
              message:find(path, 1, true) ~= nil)
          end
        end
      ]]):format(folder, folder) }, { seconds = 20 })
      assert.equal(("false\ttrue\ttrue\n"):rep(24), out .. err)
      assert.equal(0, status)
    end)
  end)

  it("reads what says that it is empty (/proc)", function()
    assert.truthy(fs.read("/proc/self/status"):find("^Name:"))
    local text, why = fs.read("/no/such/file")
    assert.is_nil(text)
    assert.equal("/no/such/file: No such file or directory", why)
  end)
end)

describe("a file that another program truncates", function()
  local shard -- of 100000 tokens
  local function cut(bytes) shell(("truncate -s %d '%s'"):format(bytes, shard)) end
  local function windows(tokens, at) return core._token_windows({ tokens }, { 1 }, { at }, 100) end

  it("is an error that names it: a shard of tokens", function()
    host.in_folder(function(folder)
      shard = disk.write(folder .. "/shard.bin", ("\1\0"):rep(100000))
      local tokens = core._tokens(shard, 2, 0)
      assert.equal(1, windows(tokens, 99000)[{ 1, 100 }]:item())
      cut(150050)
      assert.equal(1, windows(tokens, 0)[{ 1, 100 }]:item()) -- what is there still reads
      -- the rest of a page: no signal
      raises("shard.bin': it had 200000 bytes when it was opened", windows, tokens, 74960)
      raises_like("shard.bin': .*truncated", windows, tokens, 99000)
      cut(0)
      raises_like("shard.bin': .*truncated", windows, tokens, 0)
      tokens = nil -- luacheck: ignore 311
      collectgarbage()
      local again = core._tokens(disk.write(shard, ("\1\0"):rep(100000)), 2, 0)
      assert.equal(1, windows(again, 99000)[{ 1, 100 }]:item())
    end)
  end)

  it("is an error of what was lent from it, and lent tensors outlive their file", function()
    host.in_folder(function(folder)
      for _, name in ipairs { "/a.safetensors", "/a.bin" } do
        local path = folder .. name
        local value = { big = core.arange(100000), none = core.zeros(0, 3), mask = core.ones(3):gt(0) }
        files.write(value, path)
        local lent, check = files.lend(path)
        lent.big:add_(1) -- stays in this process
        assert.equal(100000, lent.big[100000]:item())
        assert.equal(99999, files.load(path).big[100000]:item())
        assert.same({ 0, 3 }, lent.none.shape)
        check()
        os.remove(path)
        collectgarbage()
        assert.equal(100000, lent.big[100000]:item())
        files.write(value, path)
        lent, check = files.lend(path)
        shell(("truncate -s 8192 '%s'"):format(path))
        assert.equal(0, lent.big[100000]:item())
        lent.big:add_(1) -- no signal where the file was
        raises_like(name:sub(2) .. "': .*truncated", check)
      end
    end)
  end)

  it("is an error of the loader, with and without workers", function()
    for workers = 0, 2 do
      host.in_folder(function(folder)
        shard = disk.write(folder .. "/shard.bin", ("\1\0"):rep(100000))
        local set = data.TokenDataset({ shard }, { block_size = 100 })
        local seen = 0
        raises_like("shard.bin': .*truncated", function()
          for _ in data.DataLoader(set, { batch_size = 10, num_workers = workers }):iter() do
            seen = seen + 1
            if seen == 3 then cut(20000) end
          end
        end)
        assert.is_true(seen >= 3 and seen < 100)
      end)
    end
  end)

  it("does not hide a bus error elsewhere", function()
    host.in_folder(function(folder)
      shard = disk.write(folder .. "/shard.bin", ("\1\0"):rep(100000))
      local status = host.run { "-e", ([[
        local core, ffi = require "accelerate.core", require "ffi"
        local tokens = core._tokens("%s", 2, 0)
        ffi.cdef "int raise(int sig);"
        ffi.C.raise(7)
      ]]):format(shard) }
      -- a sanitizer reports it and exits with 1
      assert.equal(host.path:find("/asan/", 1, true) and 1 or 128 + 7, status)
    end)
  end)
end)

describe("a disk that ends", function()
  -- 100 blocks of 512 bytes or of 1 KB, as the shell counts
  local function run(folder, script)
    local path = disk.write(folder .. "/run.lua", script)
    local pipe = io.popen(("cd '%s' && ulimit -f 100 && timeout 60 '%s' '%s' 2>&1; echo $?"):format(folder,
      host.path, path))
    local text = pipe:read("*a")
    pipe:close()
    os.remove(path)
    return text
  end

  it("is an error of save_model and leaves nothing behind", function()
    host.in_folder(function(folder)
      local text = run(folder, [[
        local accelerate, nn = require "accelerate", require "accelerate.nn"
        local accelerator = accelerate.Accelerator()
        local ok, message = pcall(accelerator.save_model, accelerator, nn.Linear(1000, 1000), "out")
        print(ok, message)
        print(require("accelerate.utils.fs").write("out/text", ("x"):rep(1e6)))
        print(io.open("mine", "w"):write(("x"):rep(1e6)))
        os.remove("mine")
      ]])
      assert.truthy(text:find("false\t[^\n]*model.safetensors': cannot write it: File too large\n"), text)
      assert.truthy(text:find("nil\tcannot write out/text: File too large\n"), text)
      assert.truthy(text:find("nil\tFile too large\t27\n0\n$"), text)
      assert.equal("", names(folder))
    end)
  end)

  it("that is full is the same", function()
    if not io.open("/dev/full") then return pending("there is no /dev/full") end
    local f = io.open("/dev/full", "w")
    local ok = f:write(("x"):rep(1e5)) and f:flush()
    assert.falsy(ok)
    local text, why = fs.write("/dev/full/x", "text")
    assert.is_nil(text)
    assert.truthy(why:find("cannot write /dev/full/x: Not a directory", 1, true), why)
  end)
end)

describe("a start without descriptors 0 to 2", function()
  it("keeps what is printed out of the script's files, with workers and ranks", function()
    host.in_folder(function(folder)
      disk.write(folder .. "/run.lua", [[
        local core, data = require "accelerate.core", require "accelerate.data"
        local rank = core.dist.rank()
        local f = io.open("file" .. rank, "w")
        print("printed")
        io.stderr:write("reported\n")
        f:write("mine\n")
        f:flush()
        local count = 0
        for _ in data.DataLoader(data.TensorDataset(core.ones(8, 2)),
          { batch_size = 2, num_workers = 2 }):iter() do
          count = count + 1
          print("again")
        end
        f:write(count, " ", tostring(io.read()), "\n")
        f:close()
      ]])
      for _, options in ipairs { "", "--num_processes 2" } do
        for _, closed in ipairs { "<&- >&- 2>&-", "</dev/null >&- 2>&-", "<&- >/dev/null 2>/dev/null",
          "<&- >&- 2>/dev/null" } do
          os.remove(folder .. "/file0")
          local pipe = io.popen(("cd '%s' && { timeout 60 '%s' %s run.lua %s; echo $?; }"):format(folder,
            host.path, options, closed))
          assert.equal("0\n", pipe:read("*a"), closed)
          pipe:close()
          assert.equal("mine\n4 nil\n", fs.read(folder .. "/file0"), closed)
        end
      end
    end)
  end)
end)

describe("writing to what is no regular file", function()
  local tensor = require "accelerate.tensor"
  local utils = require "accelerate.utils"
  local writers = {
    function(path) utils.save({ 1, tensor.ones(3) }, path) end,
    function(path) data.write_npy(path, tensor.ones(3)) end,
    function(path) core.safetensors_save(path, { { "x", tensor.ones(3) } }) end,
  }

  local function kind(path)
    local pipe = io.popen(("LC_ALL=C stat -c '%%F' '%s'"):format(path))
    local text = pipe:read("*l")
    pipe:close()
    return text
  end

  it("keeps a link, and replaces the file behind it", function()
    host.in_folder(function(folder)
      assert(os.execute(("cd '%s' && mkdir real && echo old > real/file && ln -s real/file link && " ..
        "ln -s nowhere dangling"):format(folder)))
      for _, write_to in ipairs(writers) do
        write_to(folder .. "/link")
        assert.equal("symbolic link", kind(folder .. "/link"))
        assert.equal("regular file", kind(folder .. "/real/file"))
        assert.is_nil(fs.read(folder .. "/real/file"):find("old", 1, true))
        write_to(folder .. "/dangling")
        assert.equal("regular file", kind(folder .. "/dangling"))
        assert(os.execute(("cd '%s' && rm dangling && ln -s nowhere dangling"):format(folder)))
      end
    end)
  end)

  it("keeps a pipe and a device", function()
    host.in_folder(function(folder)
      assert(os.execute(("mkfifo '%s/pipe'"):format(folder)))
      for _, write_to in ipairs(writers) do
        local ok, message = pcall(write_to, folder .. "/pipe") -- nobody reads it
        assert.is_false(ok)
        assert.matches("pipe'?: cannot write it: No such device or address", message)
        assert.equal("fifo", kind(folder .. "/pipe"))
      end
      assert(os.execute(("cat '%s/pipe' > '%s/copy' &"):format(folder, folder)))
      assert.is_true(processes.wait_until(10, function() -- as soon as it reads
        return (pcall(utils.save, tensor.arange(5), folder .. "/pipe"))
      end))
      local copied, copy
      processes.wait_until(10, function()
        copied, copy = pcall(utils.load, folder .. "/copy")
        return copied
      end)
      assert.same({ 0, 1, 2, 3, 4 }, copied and copy:totable() or copy)
      -- a device of the kind of /dev/null, where this user can make one
      if os.execute(("mknod '%s/null' c 1 3 2>/dev/null"):format(folder)) then
        for _, write_to in ipairs(writers) do
          write_to(folder .. "/null")
          assert.equal("character special file", kind(folder .. "/null"))
        end
      end
      for _, write_to in ipairs(writers) do
        local ok, message = pcall(write_to, folder)
        assert.is_false(ok)
        assert.matches("Is a directory", message)
      end
    end)
  end)
end)
