--- The rows of Accelerate's behaviour, group by group (spec/features/*.lua), each with the spec
--- that shows it.
---
---   build/accel-run spec/support/features.lua               prints the rows that no spec shows
---   build/accel-run spec/support/features.lua FEATURES.md   and the rows of that document which
---     the tables lack
---
--- A row is { name, spec = "accelerate/accelerator_spec: name of a test" or a list of such }, or,
--- for what belongs to an engine that is not there, { name, later = "the error's text", spec
--- = ... }.
local M = {}

M.GROUPS = {
  "accelerator_constructor_arguments",
  "accelerator_attributes_and_properties",
  "preparing_objects",
  "parallel_modes_and_plugins",
  "backward_accumulation_synchronisation",
  "mixed_precision",
  "collectives_and_metrics",
  "process_control",
  "data_loading",
  "random_numbers",
  "saving_and_loading",
  "optimizer_and_scheduler_wrappers",
  "state_classes",
  "configuration_and_handler_objects",
  "experiment_trackers",
  "logging_progress_debugging_profiling",
  "memory_helpers",
  "local_sgd",
  "fp8",
  "big_model_loading_and_inference",
  "quantisation",
  "launchers_from_code",
  "commands",
  "launch_options",
  "config_file",
  "environment_variables",
  "utilities",
  "usage_rules",
}

local function read(path)
  local file = io.open(path)
  if not file then return nil end
  local text = file:read("*a")
  file:close()
  return text
end

local texts = {}

--- nil, or what is wrong with one "file: test".
local function problem(reference)
  local file, test = reference:match("^([%w_/]+): (.+)$")
  if not file then return ("'%s' is not of the form 'file: test'"):format(reference) end
  local path = "spec/" .. file .. ".lua"
  if texts[path] == nil then
    local text = read(path)
    texts[path] = text and text:gsub('"%s*%.%.%s*"', "") or false -- a long title is two strings
  end
  if not texts[path] then return path .. " does not exist" end
  if not texts[path]:find('("' .. test .. '"', 1, true) then
    return ("%s has no test \"%s\""):format(path, test)
  end
end

--- Looks at every row.
---@return table[] missing rows without a spec, as { group, name }
---@return string[] wrong references that lead nowhere
---@return integer rows how many there are
function M.check()
  local missing, wrong, rows = {}, {}, 0
  for _, file in ipairs(M.GROUPS) do
    local group = dofile("spec/features/" .. file .. ".lua")
    for _, row in ipairs(group) do
      rows = rows + 1
      local references = type(row.spec) == "string" and { row.spec } or row.spec or {}
      if #references == 0 then missing[#missing + 1] = { group.group, row[1] } end
      for _, reference in ipairs(references) do
        local what = problem(reference)
        if what then wrong[#wrong + 1] = ("%s, %s: %s"):format(file, row[1], what) end
      end
    end
  end
  return missing, wrong, rows
end

--- The rows of a document of tables ("## A. Title", "| name | ...") that the tables here lack.
function M.lacking(path)
  assert(read(path), "cannot read " .. path)
  local groups = {}
  for _, file in ipairs(M.GROUPS) do
    local group = dofile("spec/features/" .. file .. ".lua")
    groups[group.group] = group
  end
  local lacking, letter, have = {}, nil, nil
  for line in io.lines(path) do
    local heading = line:match("^## (.*)")
    if heading then
      letter, have = heading:match("^(%u+)%. "), nil
      if groups[letter] then
        have = {}
        for _, row in ipairs(groups[letter]) do have[row[1]] = true end
      end
    end
    local name = have and line:match("^| (.-) | ")
    if name and name ~= "name" and not have[name] then lacking[#lacking + 1] = { letter, name } end
  end
  return lacking
end

if arg and arg[0] and arg[0]:find("features.lua", 1, true) then
  local missing, wrong, rows = M.check()
  for _, row in ipairs(missing) do print(("no spec    %-2s  %s"):format(row[1], row[2])) end
  for _, what in ipairs(wrong) do print("wrong      " .. what) end
  local lacking = arg[1] and M.lacking(arg[1]) or {}
  for _, row in ipairs(lacking) do print(("not listed %-2s  %s"):format(row[1], row[2])) end
  print(("%d rows, %d without a spec, %d wrong references, %d not listed"):format(rows, #missing, #wrong,
    #lacking))
  os.exit(#missing + #wrong + #lacking == 0 and 0 or 1)
end

return M
