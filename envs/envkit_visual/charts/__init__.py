"""The domain charts: charts, dials and clocks."""

from envkit_visual.charts.dials import Clock, Gauge, Tune
from envkit_visual.charts.readings import Bars, Heat, Lines, Outlier, Pie

WORLDS = (Bars, Lines, Pie, Outlier, Heat, Clock, Gauge, Tune)
