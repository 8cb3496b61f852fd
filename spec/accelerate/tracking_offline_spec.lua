-- What wandb's offline run and Comet's offline experiment hold, byte for byte where their tools
-- read them.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local ffi = require "ffi"
local json = require "accelerate.utils.json"
local reference = require "spec.reference.tracker_reference"
local trackers = require "spec.support.trackers"
local tensor = accelerate.tensor
local fields, find, hex, names, read, stderr_of, u32, with =
  trackers.fields, trackers.find, trackers.hex, trackers.names, trackers.read, trackers.stderr_of,
  trackers.u32, trackers.with

--- The records of a .wandb file, with every block's framing and checksum checked.
local function wandb_records(text)
  local pb = require "accelerate.tracking.protobuf"
  local list, at, whole = {}, 8, nil
  while at <= #text do
    local left = 32768 - (at - 1) % 32768
    if left < 7 then
      assert(text:sub(at, at + left - 1) == ("\0"):rep(left))
      at = at + left
    end
    local n, kind = text:byte(at + 4) + 256 * text:byte(at + 5), text:byte(at + 6)
    local data = text:sub(at + 7, at + 6 + n)
    assert((at - 1) % 32768 + 7 + n <= 32768 and #data == n)
    assert(pb.crc32(text:sub(at + 6, at + 6) .. data) == u32(text, at))
    assert((whole == nil) == (kind == 1 or kind == 2))
    whole = (whole or "") .. data
    if kind == 1 or kind == 4 then list[#list + 1], whole = whole, nil end
    at = at + 7 + n
  end
  assert(whole == nil)
  return list
end

describe("wandb's offline run", function()
  it("is the log that wandb sync reads", function()
    with("wandb", function(accelerator, folder)
      accelerator:init_trackers("proj", {
        config = { lr = 0.5 },
        init_kwargs = { wandb = { dir = folder, id = "abcd1234", name = "one", tags = { "x" } } },
      })
      local said = stderr_of(function()
        accelerator:log({ loss = 1 }, { step = 1 })
        accelerator:log({ acc = 0.5 }, { step = 1 })               -- the same row
        accelerator:log({ loss = 0.5, m = { a = 0 / 0 } }, { step = 7 })
        accelerator:log({ long = ("x"):rep(70000) }, { step = 8 })  -- over three blocks
        accelerator:log({ back = 1 }, { step = 2 })
        accelerator:log({ back = 1 }, { step = 3 })
        accelerator:log({ after = 1 })                   -- completes step 8
        accelerator:log({ next = 1 })                    -- is step 9
      end)
      assert.are.equal(1, select(2, said:gsub("must not go back", "")))
      accelerator:get_tracker("wandb"):log_images({ img = tensor.rand(3, 2, 2) }, { step = 20 })
      accelerator:get_tracker("wandb"):log_table("tab", { columns = { "a" }, data = { { 1 } } })
      accelerator:end_training()
      local path = find(folder, "%.wandb$")[1]
      assert.truthy(path:find("/wandb/offline%-run%-%d+_%d+%-abcd1234/run%-abcd1234%.wandb$"))
      local text = read(path)
      assert.are.equal(reference.wandb_head, hex(text:sub(1, 7)))
      local rows, kinds = {}, {}
      for i, data in ipairs(wandb_records(text)) do
        local record = fields(data)
        assert.are.equal(i, record[1][1])
        assert.are.equal("abcd1234", fields(record[200][1])[1][1])
        for _, kind in ipairs { 2, 3, 5, 6, 17, 18, 21 } do
          if record[kind] then kinds[#kinds + 1] = kind end
        end
        if record[2] then
          local row = { _num = fields(fields(record[2][1])[2][1])[1][1] }
          for _, item in ipairs(fields(record[2][1])[1]) do
            local entry = fields(item)
            row[table.concat(entry[2], ".")] = entry[16][1]
          end
          rows[#rows + 1] = row
        end
        if record[17] then
          local run = fields(record[17][1])
          assert.are.same({ "abcd1234", "proj", "one", "x" }, { run[1][1], run[3][1], run[8][1], run[10][1] })
        end
      end
      assert.are.same({ 21, 17, 5, 2, 3, 2, 3, 2, 3, 2, 3, 6, 6, 2, 3, 18 }, kinds)
      assert.are.same({ 1, "1", "0.5", "1" }, { rows[1]._num, rows[1].loss, rows[1].acc, rows[1]._step })
      assert.are.same({ 7, "0.5", "NaN" }, { rows[2]._num, rows[2].loss, rows[2]["m.a"] })
      assert.are.equal(70002, #rows[3].long)
      assert.are.same({ 8, "1", 9, "1", 20 }, { rows[3]._num, rows[3].after, rows[4]._num, rows[4].next,
        rows[5]._num })
      local files = folder .. "/" .. path:match("(wandb/offline[^/]*)/") .. "/files/"
      local img, tab = json.decode(rows[5].img), json.decode(rows[5].tab)
      assert.are.equal("\137PNG", read(files .. img.filenames[1]):sub(1, 4))
      assert.are.equal(tab.sha256, core._sha256(read(files .. tab.path)))
      assert.are.same({ columns = { "a" }, data = { { 1 } } }, json.decode(read(files .. tab.path)))
    end)
  end)

  it("has records with wandb's own bytes", function()
    with("wandb", function(accelerator, folder)
      accelerator:init_trackers("proj", { init_kwargs = { wandb = { dir = folder, id = "abcd1234" } } })
      accelerator:log({ loss = 0.5, m = { a = 0 / 0 } }, { step = 7 })
      accelerator:end_training()
      local record = wandb_records(read(find(folder, "%.wandb$")[1]))[3]
      -- time and runtime are added to each row; the rest is as in the reference
      local message = fields(record)[2][1]
      local items = fields(message)[1]
      local wanted = fields(
        (reference.wandb_history:gsub("..", function(b) return string.char(tonumber(b, 16)) end)))
      local theirs = fields(wanted[2][1])
      assert.are.equal(hex(theirs[1][1]), hex(items[1]))
      assert.are.equal(hex(theirs[1][2]), hex(items[2]))
      assert.are.equal(hex(theirs[2][1]), hex(fields(message)[2][1]))
      assert.are.equal(hex(wanted[200][1]), hex(fields(record)[200][1]))
    end)
  end)

  it("is not made in wandb's mode 'disabled', and cannot be made online", function()
    with("wandb", function(accelerator, folder)
      accelerator:init_trackers("proj", { init_kwargs = { wandb = { dir = folder, mode = "disabled" } } })
      accelerator:log({ loss = 1 }, { step = 1 })
      accelerator:end_training()
      assert.are.same({}, names(folder))
    end)
    with("wandb", function(accelerator)
      assert.error_matches(function()
        accelerator:init_trackers("proj", { init_kwargs = { wandb = { mode = "online" } } })
      end,
        "WandBTracker: option 'mode' must be one of offline, disabled, got 'online'")
    end)
  end)
end)

describe("Comet's offline experiment", function()
  it("is the archive that comet upload takes", function()
    with("comet_ml", function(accelerator, folder)
      accelerator:init_trackers("proj", {
        config = { lr = 0.5, nested = { a = true, list = { 1, 2 } } },
        init_kwargs = { comet_ml = { offline_directory = folder, experiment_name = "one",
          workspace = "ws" } },
      })
      accelerator:log({ loss = 0.5, note = "hi", m = { a = 0 / 0 } },
        { step = 3, log_kwargs = { comet_ml = { epoch = 2 } } })
      accelerator:get_tracker("comet_ml"):log_images({ img = tensor.rand(3, 2, 2) }, { step = 4 })
      accelerator:get_tracker("comet_ml"):log_table("tab", { columns = { "a" }, data = { { 1 } } })
      accelerator:end_training()
      local list = names(folder)
      assert.are.equal(1, #list)
      assert.truthy(list[1]:find("^%x+%.zip$") and #list[1] == 36)
      local text, entries = read(folder .. "/" .. list[1]), {}
      local at = 1
      while text:sub(at, at + 3) == "PK\3\4" do  -- unpacked by zlib, through a gzip wrapping that zcat reads
        local crc, packed, size = u32(text, at + 14), u32(text, at + 18), u32(text, at + 22)
        local n = text:byte(at + 26) + 256 * text:byte(at + 27)
        local name, data = text:sub(at + 30, at + 29 + n), text:sub(at + 30 + n, at + 29 + n + packed)
        local path = folder .. "/x.gz"
        local f = assert(io.open(path, "wb"))
        f:write("\31\139\8\0\0\0\0\0\0\3", data, ffi.string(ffi.new("uint32_t[2]", crc, size), 8))
        f:close()
        local pipe = io.popen("gzip -dc '" .. path .. "'")
        entries[name] = pipe:read("*a")
        assert(pipe:close() and #entries[name] == size)
        entries[#entries + 1] = name
        at = at + 30 + n + packed
      end
      assert.are.equal("PK\1\2", text:sub(at, at + 3))
      assert.are.equal("PK\5\6", text:sub(-22, -19))
      assert.are.equal(#entries, text:byte(-12))
      local experiment = json.decode(entries["experiment.json"])
      assert.are.same({ "proj", "ws", list[1]:sub(1, 32), "create" },
        { experiment.project_name, experiment.workspace, experiment.offline_id, experiment.resume_strategy })
      assert.truthy(entries["experiment.json"]:find('"tags": []', 1, true))
      local messages = {}
      for line in entries["messages.json"]:gmatch("[^\n]+") do
        local message = assert(json.decode(line))
        messages[#messages + 1] = message
        assert.are.equal(#messages, message.payload.message_id)
        if message.type ~= "log_other" then assert.truthy(line:find('"step": ')) end
        message.payload.message_id, message.payload.local_timestamp = nil, nil
      end
      assert.are.same({ key = "Name", value = "one" }, messages[2].payload)
      assert.are.same({ param = { paramName = "lr", paramValue = 0.5, source = "manual" } },
        messages[3].payload)
      assert.are.same({ param = { paramName = "nested|a", paramValue = true, source = "manual" } },
        messages[4].payload)
      assert.are.same({ params = { paramName = "nested|list", paramValue = { 1, 2 }, source = "manual" } },
        messages[5].payload)
      assert.are.same({ metric = { metricName = "loss", metricValue = 0.5, step = 3, epoch = 2 } },
        messages[6].payload)
      assert.are.same({ metric = { metricName = "m_a", metricValue = "NaN", step = 3, epoch = 2 } },
        messages[7].payload)
      assert.are.same({ key = "note", value = "hi" }, messages[8].payload)
      assert.are.equal("\137PNG", entries[messages[9].payload.file_path]:sub(1, 4))
      assert.are.equal("a\n1\n", entries[messages[10].payload.file_path])
    end)
  end)
end)
