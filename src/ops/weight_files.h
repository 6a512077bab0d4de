// Weights that lie in files, for a backend with memory of its own: read past mapping and page cache
// by several threads, a piece at a time, while place() goes on to the next matrix.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "percheron/types.h"

#include "core/status.h"
#include "ops/weight_matrix.h"

namespace percheron::ops {

class WeightFiles {
  public:
    // Memory of reader 0 .. readers - 1 for its next piece: from a multiple of 4096 on, as long as
    // start() said.  Waits until what the reader brought before is no longer needed.
    using Room = std::function<Result<std::byte*>(std::size_t reader)>;
    // Takes the rows that a reader has brought: data and scales point into its room, at any
    // address.  Calls of one reader come one after the other, those of several at a time.
    using Arrival = std::function<Status(std::size_t reader, const WeightMatrix& rows)>;

    virtual ~WeightFiles() = default;

    // Whether a matrix, data and scales, lies in the files as it is stored: then its pointers are
    // places there and are not read from.
    virtual bool holds(const WeightMatrix& matrix) const = 0;
    // Bytes of a room that these rows need.
    virtual Bytes room_for(const WeightMatrix& rows) const = 0;

    // Starts the readers.  What `room` and the arrivals use must be there until stop().
    virtual void start(std::size_t readers, Room room) = 0;
    // Begins to read rows of a matrix that the files hold; returns at once.  `name` is for
    // messages.
    virtual void read(const WeightMatrix& rows, std::string name, Arrival arrival) = 0;
    // Until every arrival has been taken.  The first fault of reading, of the values that were read
    // or of an arrival; what comes behind it is not read.
    virtual Status wait() = 0;
    // Ends the readers, whatever is left to be read.
    virtual void stop() = 0;
};

}  // namespace percheron::ops
