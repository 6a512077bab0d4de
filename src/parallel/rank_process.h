// A rank as a child process: its start, what it says on stderr, its end.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "parallel/control_link.h"

namespace percheron::parallel {

class RankProcess {
  public:
    // Runs this same binary with `arguments` (behind the program's name) and "--connection 3", the
    // other end of `link()`.  It holds nothing else of this process's descriptors, writes stdout
    // and stderr into lines(), is not ended by a terminal's interrupt, and ends with the thread
    // that started it.  Errors: io.
    static Result<std::unique_ptr<RankProcess>> start(const std::vector<std::string>& arguments);
    ~RankProcess();  // kills it if it is still there, and waits

    ControlLink& link() { return link_; }
    int id() const { return id_; }

    // A descriptor to wait for, and what to do then: whole lines go to `take`.
    int lines() const { return lines_.number(); }
    void read_lines(const std::function<void(std::string_view)>& take);

    void kill();
    // Whether it has ended, waiting at most so long.
    bool ended_within(std::chrono::milliseconds most);
    // "was ended by signal 9 (Killed)", "exited with code 1"; only once it has ended.
    std::string how_it_ended() const;
    // Of an exit; absent: it was killed or is still there.
    std::optional<int> exit_code() const;

  private:
    RankProcess(int id, Descriptor link, Descriptor lines);

    int id_;
    ControlLink link_;
    Descriptor lines_;
    Descriptor handle_;  // readable once it has ended
    std::string begun_;  // of a line
    std::optional<int> status_;
};

}  // namespace percheron::parallel
