"""The domain screens: windows, widgets, a mouse and a keyboard."""

from envkit_visual.screens.clicks import Form, Keypad, Menu, Scroll, Target
from envkit_visual.screens.drags import Drag, Sliders

WORLDS = (Target, Form, Sliders, Drag, Scroll, Menu, Keypad)
