// A chat template: the Jinja subset that chat templates are written in, compiled once.
//
// Runs as transformers runs templates: trim_blocks and lstrip_blocks on, its `tojson`, its globals
// (raise_exception, strftime_now), break and continue.  What is not there: include, import,
// extends, block, call and recursive loops; a template that has them is refused when it is
// compiled.
//
// Text of the variables keeps its mark through everything the template does with it, so what is
// rendered says of each byte whether the template wrote it.  Hostile templates and inputs end in an
// error: depth, steps and the size of every text are bounded.  Thread-safe once compiled.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/status.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_value.h"
#include "text/marked_text.h"

namespace percheron {

class ChatTemplate {
  public:
    // Errors: unsupported, with the line and what was not understood.
    static Result<ChatTemplate> compile(std::string_view source);

    // Errors: invalid_argument: the template raised an exception, asked for something that is not
    // there, or went beyond `limits`.
    Result<MarkedText> render(std::vector<std::pair<std::string, jinja::Value>> variables,
                              const jinja::RunLimits& limits = {}) const;

  private:
    explicit ChatTemplate(std::shared_ptr<const jinja::Block> block) : block_(std::move(block)) {}

    std::shared_ptr<const jinja::Block> block_;
};

}  // namespace percheron
