--- `log_with = "tensorboard"`: event files in <logging_dir>/<project>, for `tensorboard --logdir`.
---
--- Numbers become scalars, texts become texts, maps become charts of several curves. A run's
--- settings go to the HPARAMS tab and to hparams.yml. `accelerator:get_tracker("tensorboard", {
--- unwrap = true })` returns the SummaryWriter, which also takes histograms.
local builtin = require "accelerate.tracking.builtin"
local file = require "accelerate.tracking.file"
local ordered = require "accelerate.utils.ordered"
local values = require "accelerate.tracking.values"

local Class

-- ---- YAML of settings: what YAML reads back as the same text, number or boolean

local function plain_word(text)
  if not text:find("^[%a_][%w_ %-%./]*$") or text:find("%s$") then return false end
  local lower = text:lower()
  return not ({ y = 1, n = 1, yes = 1, no = 1, on = 1, off = 1, ["true"] = 1, ["false"] = 1, null = 1,
    nan = 1, inf = 1 })[lower]
end

local function scalar(value)
  if type(value) == "number" then
    if value ~= value then return ".nan" end
    if value == math.huge then return ".inf" end
    if value == -math.huge then return "-.inf" end
    local text = values.json(value)
    -- YAML 1.1 reads 1e-05 as a text; a float needs a point
    if text:find("e", 1, true) and not text:find(".", 1, true) then text = text:gsub("e", ".0e") end
    return text
  elseif type(value) == "string" and not plain_word(value) then
    return values.json(value)
  end
  return tostring(value)
end

local function yaml(value, indent, out)
  local list = ordered.is_list(value)
  for _, key in ipairs(ordered.keys(value)) do
    local inner = value[key]
    local head = indent .. (list and "-" or scalar(key) .. ":")
    if type(inner) ~= "table" then out[#out + 1] = head .. " " .. scalar(inner)
    elseif next(inner) == nil then out[#out + 1] = head .. " {}"
    else
      out[#out + 1] = head
      yaml(inner, indent .. "  ", out)
    end
  end
  return out
end

Class = builtin.class("TensorBoardTracker", { name = "tensorboard", requires_logging_directory = true }, {
  init = {
    filename_suffix = { "string", optional = true }, flush_secs = { "number", optional = true, min = 0 },
    max_queue = { "integer", optional = true, min = 1 }, purge_step = { "integer", optional = true },
    comment = { "string", optional = true },
  },
  log = { walltime = { "number", optional = true } },
  log_images = { walltime = { "number", optional = true }, dataformats = { "string", optional = true } },
  log_table = builtin.TABLE,
}, {
  start = function(self)
    self.logging_dir = self.logging_dir_param .. "/" .. self.run_name
    self.tracker = require("accelerate.tracking.summary_writer")(self.logging_dir, self.init_kwargs)
  end,
  store_init_configuration = function(self, config)
    local settings = builtin.settings("TensorBoardTracker:store_init_configuration", config)
    local folder = self.tracker:add_hparams(settings, {})
    file.save(folder .. "/hparams.yml", next(settings) and table.concat(yaml(settings, "", {}), "\n") .. "\n"
      or "{}\n")
  end,
  log = function(self, given, opts)
    opts = Class.options_of("log", opts)
    local writer, at = self.tracker, { global_step = opts.step, walltime = opts.walltime }
    for _, entry in ipairs(values.read("tensorboard", builtin.values("TensorBoardTracker:log", given))) do
      local name, value = entry[1], entry[2]
      if type(value) == "string" then writer:add_text(name, value, at)
      elseif type(value) == "table" then writer:add_scalars(name, value, at)
      else writer:add_scalar(name, value, at) end
    end
    writer:flush()
  end,
  log_images = function(self, given, opts)
    opts = Class.options_of("log_images", opts)
    local at = { global_step = opts.step, walltime = opts.walltime, dataformats = opts.dataformats }
    for _, name in ipairs(ordered.keys(builtin.values("TensorBoardTracker:log_images", given))) do
      self.tracker:add_images(name, given[name], at)
    end
    self.tracker:flush()
  end,
  log_table = function(self, name, opts)  -- TensorBoard has no tables, but shows Markdown's
    opts = Class.options_of("log_table", opts)
    local columns, data = builtin.table_of("TensorBoardTracker:log_table", name, opts)
    local function line(cells)
      local parts = {}
      for i = 1, #columns do
        local text = cells[i] == nil and "" or tostring(values.settings(cells[i]))
        parts[i] = text:gsub("|", "\\|"):gsub("\r?\n", " ")
      end
      return "| " .. table.concat(parts, " | ") .. " |"
    end
    local lines = { line(columns), "|" .. ("---|"):rep(#columns) }
    for _, row in ipairs(data) do lines[#lines + 1] = line(row) end
    self.tracker:add_text(name, table.concat(lines, "\n"), { global_step = opts.step })
    self.tracker:flush()
  end,
  finish = function(self)
    if self.tracker then self.tracker:close() end
  end,
})

return Class
