"""tools/flights.py against plain loops over the flights of some aircraft, and laws that hold for all flights."""

import datetime
import sys
import zoneinfo
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import flights as tool


@pytest.fixture(scope="module")
def package():
    return tool.load()


@pytest.fixture(scope="module")
def some(package):
    """All flights of every hundredth aircraft, and of none, in the order of the file."""
    flights, planes, airports = package
    chosen = set(sorted(flights.tailnum.dropna().unique())[::100])
    rows = flights[flights.tailnum.isin(chosen) | (flights.tailnum.isna() & (flights.day == 5))]
    return rows, tool.table(rows, planes, airports).to_pylist()


def departure(row):
    """Scheduled, in UTC."""
    new_york = datetime.datetime(
        row.year, row.month, row.day, row.hour, row.minute, tzinfo=zoneinfo.ZoneInfo("America/New_York")
    )
    return new_york.astimezone(datetime.UTC)


def landing(row, zones):
    """In UTC, or None if it did not land at its destination."""
    if np.isnan(row.arr_delay):
        return None
    zone = zoneinfo.ZoneInfo(zones.get(row.dest, "America/Puerto_Rico"))
    local = departure(row).astimezone(zone)
    clock = datetime.time(row.sched_arr_time // 100 % 24, row.sched_arr_time % 100)
    arrival = datetime.datetime.combine(local.date(), clock, zone)
    if arrival.replace(tzinfo=None) <= local.replace(tzinfo=None):
        arrival = datetime.datetime.combine(local.date() + datetime.timedelta(days=1), clock, zone)
    return arrival.astimezone(datetime.UTC) + datetime.timedelta(minutes=row.arr_delay)


def test_histories_are_those_of_plain_loops(package, some):
    rows, table = some
    zones = {row.faa: row.tzone for row in package[2].itertuples()}
    flights = list(rows.itertuples())
    assert len(flights) == len(table) > 3000
    landed = [landing(row, zones) for row in flights]
    of_aircraft = {}
    for i, row in enumerate(flights):
        of_aircraft.setdefault(row.tailnum if isinstance(row.tailnum, str) else None, []).append(i)
    lengths = set()
    for i, row in enumerate(flights):
        earlier = []
        if isinstance(row.tailnum, str):
            for j in of_aircraft[row.tailnum]:
                if landed[j] is not None and landed[j] < departure(row):
                    earlier.append((landed[j], j))
        last = [flights[j] for _, j in sorted(earlier)[-10:]]
        lengths.add(len(last))
        assert table[i]["history_dest"] == [f.dest for f in last], i
        assert table[i]["history_carrier"] == [f.carrier for f in last], i
        assert table[i]["history_hour"] == [f.sched_dep_time // 100 for f in last], i
        assert table[i]["history_late"] == [int(f.arr_delay > 15) for f in last], i
    assert lengths == set(range(11))


def test_features_are_those_of_the_flight(package, some):
    planes = {row.tailnum: row for row in package[1].itertuples()}
    for row, ours in zip(some[0].itertuples(), some[1], strict=True):
        assert ours["arr_delay"] == (None if np.isnan(row.arr_delay) else int(row.arr_delay))
        assert ours["cancelled"] == int(np.isnan(row.dep_time))
        assert ours["weekday"] == datetime.date(row.year, row.month, row.day).weekday()
        assert ours["date"] == row.year * 10000 + row.month * 100 + row.day
        assert (ours["month"], ours["hour"]) == (row.month, row.sched_dep_time // 100)
        assert ours["departure_minute"] == row.hour * 60 + row.minute
        assert ours["arrival_hour"] == row.sched_arr_time // 100 % 24
        assert ours["route"] == f"{row.origin}-{row.dest}"
        assert (ours["carrier"], ours["flight"], ours["distance"]) == (row.carrier, row.flight, row.distance)
        plane = planes.get(row.tailnum)
        assert ours["tailnum"] == (row.tailnum if isinstance(row.tailnum, str) else None)
        assert ours["plane_model"] == (plane and plane.model)
        assert ours["plane_engine"] == (plane and plane.engine)
        assert ours["plane_year"] == (int(plane.year) if plane and not np.isnan(plane.year) else None)


def test_nothing_that_tells_the_label_is_a_column(some):
    assert not {"dep_time", "dep_delay", "arr_time", "air_time"} & set(some[1][0])


def test_landings_fit_the_time_in_the_air(package):
    """Gate to gate takes longer than the flight: landings in a wrong time zone would not."""
    flights, _, airports = package
    off_block = tool.departures(flights) + np.timedelta64(1, "m") * flights.dep_delay.fillna(0).astype(int)
    taxi = (tool.landings(flights, airports) - off_block).dt.total_seconds() / 60 - flights.air_time
    assert taxi.notna().sum() == flights.arr_delay.notna().sum() == 327346
    assert taxi.min() >= 0
    assert taxi.max() < 300
