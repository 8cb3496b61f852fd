-- Words that comments and pages do without: verbs of speech for what a program does, and other ways
-- around the plain word.

-- Each with what to write.  Lower case; a word matches as a whole.
local PLAIN = {
  { "told", "passed, given, counted: what happens" },
  { "tells", "says which value or event" },
  { "said", "given, set" },
  { "asks for", "requests, needs" },
  { "asked for", "requested" },
  { "asked of", "queued on, requested from" },
  { "is asked", "is called, is queried" },
  { "of which", "a sentence of its own" },
  { "somebody", "the caller, a script, a rank" },
  { "lies on", "is on" },
  { "lie on", "are on" },
  { "lies in", "is in" },
  { "lie in", "are in" },
}

local function whole(words) return "%f[%a]" .. words:gsub(" ", "%%s+") .. "%f[%A]" end
for _, row in ipairs(PLAIN) do row.pattern = whole(row[1]) end

local M = {}

--- Comments and pages use the plain word.
function M.words(tree, report)
  for path in tree:each { c = true, def = true, lua = true, text = true, make = true, shell = true } do
    for _, comment in ipairs(tree:apart(path).comments) do
      local text = comment.text:lower()
      for _, row in ipairs(PLAIN) do
        if text:find(row.pattern) then
          report(path, comment.line, ('"%s": better %s'):format(row[1], row[2]))
        end
      end
    end
  end
end

-- Words with which a question or a part of a sentence begins.
local QUESTIONS = { What = true, Whether = true, How = true, Which = true, Where = true, Who = true }

--- The annotation of a function begins with "Returns" or an imperative.
function M.begins(tree, report)
  for path in tree:each({ lua = true }, { "lua/" }) do
    local first, word
    local number = 0
    for line in (tree:text(path) .. "\n"):gmatch("(.-)\n") do
      number = number + 1
      if line:find("^%s*%-%-") then
        if not first then first, word = number, line:match("^%s*%-%-%- (%a+)") end
      else
        if first and QUESTIONS[word] and (line:find("^%s*function ") or line:find("^%s*local function ")) then
          report(path, first, ('the annotation of a function begins with "%s"; ' ..
            'better "Returns ..." or an imperative'):format(word))
        end
        first = nil
      end
    end
  end
end

--- A description stands on its own: it is sorted away from what it would be "the same" as.
function M.same(tree, report)
  for path, kind in tree:each { c = true, lua = true } do
    local before = ""
    for _, comment in ipairs(tree:apart(path).comments) do
      local begins
      if kind == "lua" then
        begins = comment.text:find("^%-%-%-%s*The same%f[%A]") and not before:find("^%-%-%-")
      else
        begins = comment.text:find("^/%*%s*The same%f[%A]")
      end
      if begins then report(path, comment.line, 'a description begins with "The same"; say what it does') end
      before = comment.text
    end
  end
end

return M
