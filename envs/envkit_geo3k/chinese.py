"""Chinese words of an answer, as the English words that the grader reads.

A closed list, like the prose of `wording`: any other character stays and makes the answer
unreadable, so "不是12" (is not 12) and "x的平方是12" (the square of x is 12) are not 12.
"""

import re
from typing import Final

_WORDS: Final = {
    english: chinese.split()
    for english, chinese in {
        "is": "是 为 為",
        "equals": "等于 等於",
        "is about": "约为 約為 大约为 大约是",
        "about": "约 約 大约 大約 约等于 約等於",
        "get": "得 得到 可得 解得",
        "so": "所以 因此 故 则 則 于是 从而 即 那么 综上 综上所述",
        "we": "我们 我們",
        "answer": "答 答案 结果 結果",
        "final answer": "最终答案 最後答案 最后答案",
        "final": "最终 最後 最后",
        "correct answer": "正确答案 正確答案",
        "solution": "解",
        "the": "的",
        "or": "或 或者",
        "and": "和 与 與 及",
        "to": "比",
        "value": "值 数值",
        "measure": "度数 度數",
        "length": "长 長 长度 長度",
        "width": "宽 寬 宽度 寬度",
        "height": "高 高度",
        "distance": "距离 距離",
        "area": "面积 面積",
        "total area": "总面积 總面積",
        "surface area": "表面积 表面積",
        "perimeter": "周长 周長",
        "volume": "体积 體積",
        "radius": "半径 半徑",
        "diameter": "直径 直徑",
        "side": "边 邊",
        "side length": "边长 邊長",
        "base": "底 底边",
        "hypotenuse": "斜边 斜邊",
        "angle": "角 角度",
        "interior angle": "内角 內角",
        "exterior angle": "外角",
        "central angle": "圆心角 圓心角",
        "inscribed angle": "圆周角 圓周角",
        "arc": "弧",
        "arc length": "弧长 弧長",
        "chord": "弦 弦长",
        "segment": "线段 線段",
        "slope": "斜率",
        "point": "点 點",
        "diagonal": "对角线 對角線",
        "midsegment": "中位线 中位線",
        "leg": "直角边 直角邊",
        "coordinates": "坐标 坐標",
        "triangle": "三角形",
        "isosceles triangle": "等腰三角形",
        "right triangle": "直角三角形",
        "equilateral triangle": "等边三角形 等邊三角形",
        "rectangle": "矩形 长方形 長方形",
        "square": "正方形",
        "parallelogram": "平行四边形 平行四邊形",
        "rhombus": "菱形",
        "trapezoid": "梯形",
        "quadrilateral": "四边形 四邊形",
        "polygon": "多边形 多邊形",
        "circle": "圆 圓",
        "shaded region": "阴影部分 陰影部分",
        "ratio": "比值 比例",
        "units": "单位 單位 个单位 個單位 长度单位",
        "square units": "平方单位 平方單位 个平方单位",
        "cubic units": "立方单位 个立方单位",
        "°": "度",
        "radians": "弧度",
        "mm": "毫米",
        "cm": "厘米 公分 釐米",
        "dm": "分米",
        "meters": "米 公尺",
        "km": "千米 公里",
        "square mm": "平方毫米",
        "square cm": "平方厘米 平方公分",
        "square dm": "平方分米",
        "square meters": "平方米 平方公尺",
        "square km": "平方千米 平方公里",
        "cubic mm": "立方毫米",
        "cubic cm": "立方厘米",
        "cubic dm": "立方分米",
        "cubic meters": "立方米",
        "inches": "英寸",
        "feet": "英尺",
        "grams": "克",
        "kg": "千克 公斤",
        "tons": "吨",
        "ml": "毫升",
        "liters": "升",
        "seconds": "秒",
        "minutes": "分钟 分鐘",
        "hours": "小时 小時",
        "days": "天",
        "yuan": "元",
        "-": "负 負",
        "\\sqrt": "根号 根號",
        "\\pi": "派",
    }.items()
}
_ENGLISH: Final = {
    chinese: f" {english} " for english, words in _WORDS.items() for chinese in words
}
_CHINESE: Final = re.compile("|".join(sorted(_ENGLISH, key=len, reverse=True)))


def in_english(text: str) -> str:
    """Return a text with its known Chinese words in English, each between spaces."""
    return _CHINESE.sub(lambda found: _ENGLISH[found.group()], text)
