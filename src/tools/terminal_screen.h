// The whole terminal for a while: another screen, no echo, single keys.  The terminal is given back
// as it was when the object goes, while the program is stopped (Ctrl-Z), and when it dies of a
// fault.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <signal.h>

#include "core/status.h"
#include "tools/http_client.h"

namespace percheron::tools {

class TerminalScreen {
  public:
    // What happened since it was last asked.
    struct News {
        bool quit = false;    // q, Ctrl-C, a request to end, or the terminal is gone
        bool redraw = false;  // another size, or back from a stop
    };
    struct Size {
        std::size_t columns = 80;
        std::size_t rows = 24;
    };

    // stdin and stdout must be a terminal; one object at a time, in a program of one thread.
    // Errors: io.
    static Result<std::unique_ptr<TerminalScreen>> open();
    ~TerminalScreen();
    TerminalScreen(const TerminalScreen&) = delete;
    TerminalScreen& operator=(const TerminalScreen&) = delete;

    // Readable when take_news() has something to tell.
    int news_descriptor() const { return events_.get(); }
    News take_news();

    Size size() const;
    // Lines as StyledLines makes them for size().
    void draw(const std::vector<std::string>& lines);

  private:
    TerminalScreen() = default;

    sigset_t signals_before_{};
    Descriptor signals_;
    Descriptor events_;  // signals and keys
};

}  // namespace percheron::tools
