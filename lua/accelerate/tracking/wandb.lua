--- `log_with = "wandb"`: a Weights & Biases run in offline form. `wandb sync <folder>` uploads it
--- later, where there is a network. Nothing is sent from here.
---
--- The folder is wandb/offline-run-<date>_<time>-<id> below init_kwargs' dir (WANDB_DIR, or the
--- working directory). Its file run-<id>.wandb is a log in LevelDB's format
--- (leveldb/doc/log_format.md) with plain CRC-32 checksums, after a header of seven bytes. wandb
--- joins what is logged in one step, so a row is written when the next step begins: a killed run
--- lacks its last row. Each entry is a Record message (wandb/proto/wandb_internal.proto). Comments
--- below give its field numbers.
local builtin = require "accelerate.tracking.builtin"
local core = require "accelerate.core"
local env = require "accelerate.utils.environment"
local file = require "accelerate.tracking.file"
local json = require "accelerate.utils.json"
local ordered = require "accelerate.utils.ordered"
local pb = require "accelerate.tracking.protobuf"
local png = require "accelerate.plot.png"
local notice = require "accelerate.messages.notice"
local values = require "accelerate.tracking.values"

local Class

-- ---- the log

-- A block has 32 KB. A record is whole (1) or cut into first (2), middle (3) and last (4) parts.
local BLOCK, HEAD = 32768, 7
local WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4

local function part(kind, data)
  return pb.uint32_bytes(pb.crc32(string.char(kind) .. data)) ..
    string.char(#data % 256, math.floor(#data / 256), kind) .. data
end

--- Returns the bytes of a record that begins at offset `at` of the file.
local function framed(at, data)
  local out, left = {}, BLOCK - at % BLOCK
  if left < HEAD then
    out[1] = ("\0"):rep(left)
    left = BLOCK
  end
  if #data + HEAD <= left then
    out[#out + 1] = part(WHOLE, data)
    return table.concat(out)
  end
  local from, kind = 1, FIRST
  while #data - from + 1 > left - HEAD do
    out[#out + 1] = part(kind, data:sub(from, from + left - HEAD - 1))
    from, left, kind = from + left - HEAD, BLOCK, MIDDLE
  end
  out[#out + 1] = part(LAST, data:sub(from))
  return table.concat(out)
end

--- Adds a Record: num 1, one of the kinds, _info 200 (stream_id 1).
local function put(self, field, message)
  local run = self.tracker
  run.num = run.num + 1
  local bytes = framed(run.at, pb.int(1, run.num) .. pb.bytes(field, message) ..
    pb.bytes(200, pb.bytes(1, run.id)))
  self._file:write(bytes)
  run.at = run.at + #bytes
end

-- Kinds of Record.
local HISTORY, SUMMARY, CONFIG, FILES, RUN, EXIT, HEADER = 2, 3, 5, 6, 17, 18, 21

-- ---- JSON as wandb has it: NaN and the infinities as bare words

local function text_of(value)
  if type(value) == "number" and value - value ~= 0 then
    return value ~= value and "NaN" or value > 0 and "Infinity" or "-Infinity"
  end
  if type(value) == "table" then return values.json(value) end
  return (json.encode(value))
end

-- ConfigRecord: update 1 (ConfigItem: key 1, value_json 16).
local function config_message(settings)
  local out = {}
  for _, key in ipairs(ordered.keys(settings)) do
    out[#out + 1] = pb.bytes(1, pb.bytes(1, key) .. pb.bytes(16, text_of(settings[key])))
  end
  return table.concat(out)
end

-- HistoryItem and SummaryItem: nested_key 2 (one for each level), value_json 16.
local function item(keys, text)
  local out = {}
  for i, key in ipairs(keys) do out[i] = pb.bytes(2, key) end
  return pb.bytes(1, table.concat(out) .. pb.bytes(16, text))
end

--- Writes the pending row: HistoryRecord (item 1, step 2 (num 1)), and its SummaryRecord (update
--- 1).
local function commit(self)
  local run, row = self.tracker, self._row
  if not row then return end
  self._row = nil
  local items = {}
  for _, key in ipairs(ordered.keys(row.values)) do
    local value = row.values[key]
    if type(value) == "table" and not value._type then
      for _, inner in ipairs(ordered.keys(value)) do
        items[#items + 1] = item({ key, inner }, text_of(value[inner]))
      end
    else
      items[#items + 1] = item({ key }, text_of(value))
    end
  end
  items[#items + 1] = item({ "_timestamp" }, text_of(row.time))
  items[#items + 1] = item({ "_runtime" }, text_of(row.time - run.start))
  items[#items + 1] = item({ "_step" }, text_of(run.step))
  local all = table.concat(items)
  put(self, HISTORY, all .. pb.bytes(2, pb.int(1, run.step)))
  put(self, SUMMARY, all)
  run.step = run.step + 1
end

--- Adds values to the row of a step. Without a step, adds them to the pending row and writes it.
local function add(self, map, step)
  local run = self.tracker
  if step and step < run.step then
    if not self._told then
      notice.here("wandb: step %d comes after step %d, and steps of a wandb run must not go back: what " ..
        "is logged to earlier ones is left out",
        step, run.step)
    end
    self._told = true
    return
  end
  if step and step > run.step then
    commit(self)
    run.step = step
  end
  self._row = self._row or { values = {} }
  -- order does not matter: keys are distinct
  for key, value in next, map do self._row.values[key] = value end
  self._row.time = file.now()
  if not step then commit(self) end
end

--- Saves a file of the run below files/ and adds a FilesRecord: files 1 (path 1, policy 2 (NOW 0),
--- type 3 (MEDIA 2)).
local function keep(self, path, bytes)
  file.make_dirs(self.tracker.dir .. "/files/" .. path:match("^(.*)/"))
  file.save(self.tracker.dir .. "/files/" .. path, bytes)
  put(self, FILES, pb.bytes(1, pb.bytes(1, path) .. pb.int(3, 2)))
end

--- Returns the step of a value that is logged now.
local function step_of(self, step) return math.max(step or 0, self.tracker.step) end

local MODES = { "offline", "disabled" }

local function timestamp(seconds)
  local whole = math.floor(seconds)
  return pb.int(1, whole) .. pb.int(2, math.floor((seconds - whole) * 1e9))
end

local function start(self)
  local o, now = self.init_kwargs, file.now()
  local mode = o.mode or (env.text("WANDB_MODE") == "disabled" and "disabled" or "offline")
  if mode == "disabled" then
    self._off = true
    return
  end
  local id = o.id or env.text("WANDB_RUN_ID") or file.random_hex(4)
  local dir = ("%s/wandb/offline-run-%s-%s"):format(o.dir or env.text("WANDB_DIR", "."),
    os.date("%Y%m%d_%H%M%S", now), id)
  file.make_dirs(dir .. "/files")
  file.make_dirs(dir .. "/logs")
  self.tracker = { id = id, dir = dir, start = now, num = 0, step = 0, at = HEAD }
  self._file = file.open(("%s/run-%s.wandb"):format(dir, id), { new = true })
  self._file:write(":W&B\225\190\0")  -- the magic number 0xBEE1, version 0
  -- HeaderRecord: version_info 1 (producer 1, min_consumer 2)
  put(self, HEADER, pb.bytes(1, pb.bytes(1, "accel") .. pb.bytes(2, "0.40.0")))
  local settings = values.settings(o.config or {})
  -- RunRecord: run_id 1, entity 2, project 3, config 4, run_group 6, job_type 7, display_name 8,
  -- notes 9, tags 10, host 13, start_time 17
  local fields = { pb.bytes(1, id) }
  local function text(number, value)
    if value then fields[#fields + 1] = pb.bytes(number, value) end
  end
  text(2, o.entity or env.text("WANDB_ENTITY"))
  text(3, self.run_name)
  fields[#fields + 1] = pb.bytes(4, config_message(settings) ..
    pb.bytes(1, pb.bytes(1, "_wandb") .. pb.bytes(16, "{}")))
  text(6, o.group or env.text("WANDB_RUN_GROUP"))
  text(7, o.job_type)
  text(8, o.name or env.text("WANDB_NAME"))
  text(9, o.notes)
  for _, tag in ipairs(o.tags or {}) do text(10, tag) end
  text(13, file.hostname())
  fields[#fields + 1] = pb.bytes(17, timestamp(now))
  put(self, RUN, table.concat(fields))
end

Class = builtin.class("WandBTracker",
{ name = "wandb", requires_logging_directory = false, main_process_only = false }, {
init = {
  name = { "string", optional = true }, id = { "string", optional = true },
  entity = { "string", optional = true },
  group = { "string", optional = true }, job_type = { "string", optional = true },
  notes = { "string", optional = true },
  tags = { "list", optional = true }, dir = { "string", optional = true },
  config = { "table", optional = true },
  mode = { "string", optional = true, one_of = MODES },
},
log_images = { dataformats = { "string", optional = true } },
log_table = builtin.TABLE,
}, {
  start = start,
  store_init_configuration = function(self, config)
    put(self, CONFIG, config_message(builtin.settings("WandBTracker:store_init_configuration", config)))
  end,
  log = function(self, given, opts)
    opts = Class.options_of("log", opts)
    local map = {}
    for _, entry in ipairs(values.read("wandb", builtin.values("WandBTracker:log", given))) do
      map[entry[1]] = entry[2]
    end
    add(self, map, opts.step)
  end,
  log_images = function(self, given, opts)
    opts = Class.options_of("log_images", opts)
    local map, step = {}, step_of(self, opts.step)
    for _, name in ipairs(ordered.keys(builtin.values("WandBTracker:log_images", given))) do
      local files, sizes = png.files("WandBTracker:log_images: " .. name, given[name], opts.dataformats)
      local names = {}
      for i, bytes in ipairs(files) do
        names[i] = ("media/images/%s_%d_%s.png"):format(file.safe_name(name), step,
          core._sha256(bytes):sub(1, 20))
        keep(self, names[i], bytes)
      end
      map[name] = { _type = "images/separated", count = #files, filenames = names, format = "png",
        height = sizes[1][1],
        width = sizes[1][2] }
    end
    add(self, map, opts.step)
  end,
  log_table = function(self, name, opts)
    opts = Class.options_of("log_table", opts)
    local columns, data = builtin.table_of("WandBTracker:log_table", name, opts)
    local bytes = values.json({ columns = columns, data = values.settings(data) })
    local sha = core._sha256(bytes)
    local path = ("media/table/%s_%d_%s.table.json"):format(file.safe_name(name), step_of(self, opts.step),
      sha:sub(1, 20))
    keep(self, path, bytes)
    add(self, { [name] = { _type = "table-file", ncols = #columns, nrows = #data, path = path, sha256 = sha,
      size = #bytes } }, opts.step)
  end,
  finish = function(self)
    if not self.tracker then return end
    commit(self)
    -- RunExitRecord: exit_code 1 (0), runtime 2
    put(self, EXIT, pb.int(2, math.floor(file.now() - self.tracker.start)))
    self._file:close()
  end,
})

return Class
