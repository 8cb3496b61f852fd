-- Regular expressions over whole texts: lua/accelerate/utils/regex.lua.
local messages = require "spec.support.messages"
local regex = require "accelerate.utils.regex"

-- Expression, texts that it matches, texts that it does not. Python's re.fullmatch says so.
local CASES = {
  { "", { "" }, { "a" } },
  { "abc", { "abc" }, { "ab", "abcd", "xabc" } },
  { "a|bc", { "a", "bc" }, { "b", "abc" } },
  { "h\\.(0|1)\\..*", { "h.0.mlp", "h.1." }, { "h.2.mlp", "hx0.mlp", "h.0" } },
  { "(?:ab)*c?", { "", "ababc", "c", "ab" }, { "abab c", "aba" } },
  { "(?P<block>a+)b", { "aab" }, { "b" } },
  { "[a-c\\d_]+", { "ab9_", "c" }, { "d", "" } },
  { "[^.]*\\.x", { "foo.x", ".x" }, { "f.o.x" } },
  { "[]a-]+", { "]a-" }, { "b" } },
  { "a{2,3}", { "aa", "aaa" }, { "a", "aaaa" } },
  { "a{2}", { "aa" }, { "a", "aaa" } },
  { "a{,2}", { "", "aa" }, { "aaa" } },
  { "a{2,}", { "aa", "aaaaaa" }, { "a" } },
  { "x{", { "x{" }, { "x" } },
  { ".*?mlp", { "a.mlp", "mlp" }, { "mlp2" } },
  { "^a$", { "a" }, { "aa" } },
  { "\\w+\\s\\D", { "ab c" }, { "ab 1", "abc" } },
  { "é.", { "éé", "éa" }, { "é" } },
  { "(a|ab)(c|bcd)", { "abcd", "ac", "abc" }, { "abd" } },
}

describe("a regular expression", function()
  for _, case in ipairs(CASES) do
    local source, taken, refused = unpack(case)
    it(("'%s' matches whole texts alone"):format(source), function()
      local matches = regex.full_match(source)
      for _, text in ipairs(taken) do assert(matches(text), text) end
      for _, text in ipairs(refused) do assert(not matches(text), text) end
    end)
  end

  it("takes time in proportion to the text where a search would take years", function()
    local text = ("a"):rep(3000)
    assert.is_true(regex.full_match "(a|a)*"(text))
    assert.is_false(regex.full_match "(a*)*b"(text))
  end)

  it("says what is wrong, and where", function()
    for source, text in pairs { ["(a"] = "at letter 3: a ) is missing",
      ["a)"] = "at letter 2: a ) without its (",
      ["[a"] = "a class without its ]", ["*a"] = "nothing stands before *",
      ["a**"] = "a quantifier of a quantifier",
      ["a\\"] = "a backslash at the end", ["(?=a)"] = "(?= is not supported",
      ["\\1"] = "\\1 is not supported",
      ["[b-a]"] = "a range that ends before it begins", ["a{3,2}"] = "at least 3 and at most 2 repeats",
      ["((a{1000}){1000}){1000}"] = "more than 1000 repeats",
      [("("):rep(200) .. (")"):rep(200)] = "more than 100 times" } do
      messages.raises(text, regex.full_match, source, "ignored_modules")
      messages.raises("ignored_modules: the expression '", regex.full_match, source, "ignored_modules")
    end
  end)
end)
